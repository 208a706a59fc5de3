// The sums of dQ, scaled and in 16 bits. A CTA has a block of queries of a head; its warps take from the sums what the warps of
// the main kernel added, in the same order.
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/backward/epilogue.h"
#include "cute_kernels/sm90/backward/preprocess.cuh"
#include "cute_kernels/sm90/backward/problem.h"
#include "cute_kernels/sm90/backward/traits.h"

namespace pyflash::sm90::backward {

template <class Traits>
struct PostprocessStorage {
  alignas(1024) typename Traits::Element rows[Traits::kBlockM * Traits::kHeadDim];
};

template <class Traits>
CUTE_DEVICE void postprocess_cta(BackwardParams const& problem) {
  using Element = typename Traits::Element;
  auto& smem = device::dynamic_smem<PostprocessStorage<Traits>>();
  device::wait_for_previous_kernel();
  device::launch_dependents();
  QueryBlock const block = QueryBlock::of(problem, device::block_idx());
  int const warp = device::thread_idx() / 32;
  int const lane = device::thread_idx() % 32;
  int const consumer = warp / Traits::kWarpsPerConsumer;
  int64_t const at = workspace_block(problem, block.batch, block.head, block.m_block);
  auto const* const sums = reinterpret_cast<float4 const*>(problem.dq_sum + at * Traits::kBlockDQ +
                                                           warp * Traits::kWarpDQ);
  Tensor acc_dQ = make_tensor<float>(Accumulator<Traits::kSlab>{});  // (MMA,MMA_M,MMA_N)
  CUTE_UNROLL
  for (int i = 0; i < Traits::kValuesDQ; i += 4) {
    float4 const values = device::load(sums + i / 4 * 32 + lane);
    acc_dQ(i) = values.x;
    acc_dQ(i + 1) = values.y;
    acc_dQ(i + 2) = values.z;
    acc_dQ(i + 3) = values.w;
  }
  int const first_query = block.m_block * Traits::kBlockM + Traits::first_query_dQ(consumer) +
                          warp % Traits::kWarpsPerConsumer * Traits::kWarpRows;
  int const first_column = Traits::first_column_dQ(consumer);
  TensorStrides const& strides = problem.dq_strides;
  Element* const out = static_cast<Element*>(problem.dq) + block.batch * strides.batch +
                       block.head * strides.head + first_query * strides.row + first_column;
  store_slab<Traits>(
      acc_dQ, 0, problem.softmax_scale, smem.rows + warp * Traits::kWarpRows * Traits::kSlab,
      {out, strides.row, problem.seqlen_q - first_query, problem.d_head - first_column});
}

}  // namespace pyflash::sm90::backward
