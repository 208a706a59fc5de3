// The sums of dQ, scaled and in 16 bits. A CTA has a piece of the queries of a head, a thread eight columns of a row at a time.
#pragma once

#include <cstdint>

#include <cute/tensor_impl.hpp>

#include "cute_kernels/common/backward_preprocess.cuh"
#include "cute_kernels/sm80/backward/sums.h"

namespace pyflash::sm80::backward {

using pyflash::backward::QueryPiece;

inline constexpr int kPostprocessThreads = 256;

// kColumns: those of the config.
template <class Element, int kColumns>
CUTE_DEVICE void postprocess_cta(BackwardParams const& problem) {
  constexpr int kVector = 8;  // elements in 16 bytes
  constexpr int kVectorsOfRow = kColumns / kVector;
  device::wait_for_previous_kernel();
  device::launch_dependents();
  QueryPiece const piece = QueryPiece::of(problem, device::block_idx());
  CUTE_UNROLL
  for (int first = 0; first < kQueriesOfPiece * kVectorsOfRow; first += kPostprocessThreads) {
    int const i = first + device::thread_idx();
    int const row = i / kVectorsOfRow;
    int const column = i % kVectorsOfRow * kVector;
    if (piece.first_query + row >= piece.queries.length || column >= problem.d_head) {
      continue;
    }
    // In its tile of 16 x 8, four lanes have two values each: the even columns, then the odd ones.
    constexpr int kTilesOfColumn = kRowsOfPart / 16;
    int const in_part = column % kColumnsOfPart / 8 * kTilesOfColumn + row % kRowsOfPart / 16;
    float const* const sums = problem.dq_sum +
                              part_of(piece.row + row, column, kColumns) * kSumsOfTurn +
                              in_part * kValuesOfTile + row % 16 / 8 * (2 * kLanes) + row % 8 * 4;
    float4 const even = device::load(reinterpret_cast<float4 const*>(sums));
    float4 const odd = device::load(reinterpret_cast<float4 const*>(sums + kLanes));
    float const scale = problem.softmax_scale;
    uint4 const packed{device::pack2(even.x * scale, odd.x * scale, Element{}),
                       device::pack2(even.y * scale, odd.y * scale, Element{}),
                       device::pack2(even.z * scale, odd.z * scale, Element{}),
                       device::pack2(even.w * scale, odd.w * scale, Element{})};
    Element* const out = piece.row_of(static_cast<Element*>(problem.dq), problem.dq_strides,
                                      piece.first_query + row);
    device::store(reinterpret_cast<uint4*>(out + column), packed);
  }
}

}  // namespace pyflash::sm80::backward
