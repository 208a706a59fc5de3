// The sums of dQ of a piece of queries, scaled and in 16 bits: a slab of their columns by a warpgroup.
#pragma once

#include "cute_kernels/common/backward_preprocess.cuh"
#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/backward/epilogue.h"
#include "cute_kernels/sm90/backward/shape.h"
#include "cute_kernels/sm90/backward/threads.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/gemm.h"

namespace pyflash::sm90::backward {

using pyflash::backward::QueryPiece;

// The first of this thread's vectors of a slab, which are 32 apart. sums: of the queries' first piece.
template <class Piece>
CUTE_DEVICE float4* vectors_of(float* sums, int slab) {
  constexpr int kWarps = kWarpgroup / 32;
  constexpr int kSlabs = Piece::kColumns / Piece::kSlab;  // of a piece
  int const piece = slab / kSlabs;
  int const part = slab % kSlabs * Piece::kVectors * 32 * 4;
  return reinterpret_cast<float4*>(
             sums + ((piece * kWarps + fresh_thread() / 32) * Piece::kWarpFloats + part)) +
         fresh_lane();
}

// vector(i): a float4. memory: shared, of the warp, for 16 rows of a slab.
template <class Element, class Piece, class Vector>
CUTE_DEVICE void store_rounded(AttentionGradients const& problem, QueryPiece const& piece, int slab,
                               Element* memory, Vector const& vector) {
  constexpr int kSlab = Piece::kSlab;
  Tensor acc_dQ = make_tensor<float>(Accumulator<kSlab>{});  // (MMA,MMA_M,MMA_N)
  CUTE_UNROLL
  for (int i = 0; i < Piece::kVectors; ++i) {
    float4 const values = vector(i);
    acc_dQ(4 * i) = values.x;
    acc_dQ(4 * i + 1) = values.y;
    acc_dQ(4 * i + 2) = values.z;
    acc_dQ(4 * i + 3) = values.w;
  }
  int const first_query = piece.first_query + fresh_thread() / 32 * kWarpRows;
  int const column = slab * kSlab;
  Element* const out =
      piece.row_of(static_cast<Element*>(problem.dq), problem.dq_strides, first_query) + column;
  store_slab<kSlab, Element>(
      acc_dQ, 0, problem.softmax_scale, memory,
      {out, problem.dq_strides.row, piece.queries.length - first_query, problem.d_head - column});
}

}  // namespace pyflash::sm90::backward
