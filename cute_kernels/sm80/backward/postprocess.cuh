// The sums of dQ, scaled and in 16 bits, and those of dK and dV, where there are any. A CTA has a piece of the queries of a head, or
// of the keys, a thread eight columns of a row at a time.
#pragma once

#include <cstdint>

#include <cute/tensor_impl.hpp>

#include "cute_kernels/common/backward_preprocess.cuh"
#include "cute_kernels/sm80/backward/key_sums.h"
#include "cute_kernels/sm80/backward/sums.h"

namespace pyflash::sm80::backward {

using pyflash::backward::QueryPiece;

inline constexpr int kPostprocessThreads = 256;

// Rounds the rows of a piece, of which n_rows exist. tile_of: the first value of the tile that has a row of the piece and a column.
// out: of its first row.
template <class Element, int kColumns, class TileOf>
CUTE_DEVICE void round_piece(TileOf const& tile_of, int n_rows, float scale, Element* out,
                             int64_t stride, int d_head) {
  constexpr int kVector = 8;  // elements in 16 bytes
  constexpr int kVectorsOfRow = kColumns / kVector;
  CUTE_UNROLL
  for (int first = 0; first < kQueriesOfPiece * kVectorsOfRow; first += kPostprocessThreads) {
    int const i = first + device::thread_idx();
    int const in_piece = i / kVectorsOfRow;
    int const column = i % kVectorsOfRow * kVector;
    if (in_piece >= n_rows || column >= d_head) {
      continue;
    }
    // In its tile, four lanes have two values each: the even columns, then the odd ones.
    float const* const values =
        tile_of(in_piece, column) + in_piece % kTileRows / 8 * (2 * kLanes) + in_piece % 8 * 4;
    float4 const even = device::load(reinterpret_cast<float4 const*>(values));
    float4 const odd = device::load(reinterpret_cast<float4 const*>(values + kLanes));
    uint4 const packed{device::pack2(even.x * scale, odd.x * scale, Element{}),
                       device::pack2(even.y * scale, odd.y * scale, Element{}),
                       device::pack2(even.z * scale, odd.z * scale, Element{}),
                       device::pack2(even.w * scale, odd.w * scale, Element{})};
    device::store(reinterpret_cast<uint4*>(out + in_piece * stride + column), packed);
  }
}

// kColumns: those of the config.
template <class Element, int kColumns>
CUTE_DEVICE void postprocess_cta(BackwardParams const& problem) {
  device::wait_for_previous_kernel();
  device::launch_dependents();
  int const n_key_pieces = problem.n_key_pieces();
  if (device::block_idx() < n_key_pieces) {
    KeyPiece const piece = KeyPiece::of(problem, device::block_idx());
    auto const& tile = piece.tile;
    TensorStrides const& strides = piece.of_dV ? problem.dv_strides : problem.dk_strides;
    auto* const out = static_cast<Element*>(piece.of_dV ? problem.dv : problem.dk);
    round_piece<Element, kColumns>(
        [&](int row, int column) {
          return problem.dkv_sum + key_tile_at(piece.row + row, column, kColumns);
        },
        tile.keys().length - tile.first_key, 1.f,
        strides.at(out, tile.batch, tile.head_kv, tile.keys().begin + tile.first_key), strides.row,
        problem.d_head);
    return;
  }
  QueryPiece const piece = QueryPiece::of(problem, device::block_idx() - n_key_pieces);
  round_piece<Element, kColumns>(
      [&](int row, int column) {
        return problem.dq_sum + tile_at(piece.row + row, column, kColumns);
      },
      piece.queries.length - piece.first_query, problem.softmax_scale,
      piece.row_of(static_cast<Element*>(problem.dq), problem.dq_strides, piece.first_query),
      problem.dq_strides.row, problem.d_head);
}

}  // namespace pyflash::sm80::backward
