// The sums of dQ, scaled and in 16 bits. A CTA has a piece of the queries of a head, and a warpgroup for each piece of their
// columns.
#pragma once

#include <cute/tensor.hpp>

#include "cute_kernels/common/backward_preprocess.cuh"
#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/backward/epilogue.h"
#include "cute_kernels/sm90/backward/shape.h"
#include "cute_kernels/sm90/gemm.h"

namespace pyflash::sm90::backward {

using pyflash::backward::QueryPiece;

// kColumns: those of the config.
template <int kColumns>
inline constexpr int kPostprocessThreads = kColumns / kSlab * kWarpgroup;

template <class Element, int kColumns>
struct PostprocessStorage {
  alignas(1024) Element rows[kQueriesOfPiece * kColumns];
};

template <class Element, int kColumns>
CUTE_DEVICE void postprocess_cta(BackwardParams const& problem) {
  auto& smem = device::dynamic_smem<PostprocessStorage<Element, kColumns>>();
  device::wait_for_previous_kernel();
  device::launch_dependents();
  QueryPiece const piece = QueryPiece::of(problem, device::block_idx());
  int const thread = device::thread_idx();
  int const warp = thread / 32;
  auto const* const sums =
      reinterpret_cast<float4 const*>(problem.sums_of(piece.row) + warp * kWarpDQ) + thread % 32;
  Tensor acc_dQ = make_tensor<float>(Accumulator<kSlab>{});  // (MMA,MMA_M,MMA_N)
  CUTE_UNROLL
  for (int i = 0; i < kValuesDQ; i += 4) {
    float4 const values = device::load(sums + i / 4 * 32);
    acc_dQ(i) = values.x;
    acc_dQ(i + 1) = values.y;
    acc_dQ(i + 2) = values.z;
    acc_dQ(i + 3) = values.w;
  }
  int const first_query = piece.first_query + thread % kWarpgroup / 32 * kWarpRows;
  int const first_column = thread / kWarpgroup * kSlab;
  TensorStrides const& strides = problem.dq_strides;
  Element* const out =
      piece.row_of(static_cast<Element*>(problem.dq), strides, first_query) + first_column;
  store_slab<Element>(
      acc_dQ, 0, problem.softmax_scale, smem.rows + warp * kWarpRows * kSlab,
      {out, strides.row, piece.queries.length - first_query, problem.d_head - first_column});
}

}  // namespace pyflash::sm90::backward
