// What the main kernel of a backward needs of each query: lse in base 2 and delta = rowsum(dO * O) - dlse, padded to whole
// blocks; and sums of dQ that start at 0. A CTA has a block of queries of a head.
#pragma once

#include <cmath>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/row_softmax.h"
#include "cute_kernels/sm90/backward/problem.h"
#include "cute_kernels/sm90/backward/traits.h"

namespace pyflash::sm90::backward {

inline constexpr int kPreprocessThreads = 256;

// The block of queries that a CTA of a kernel before or after the main one has.
struct QueryBlock {
  int m_block;
  int head;
  int batch;

  CUTE_DEVICE static QueryBlock of(BackwardParams const& problem, int index) {
    int const rest = index / problem.n_m_blocks;
    return {index % problem.n_m_blocks, rest % problem.heads, rest / problem.heads};
  }
};

template <class Element>
CUTE_DEVICE float dot(uint4 const& a, uint4 const& b) {
  constexpr int kVector = sizeof(uint4) / sizeof(Element);
  float sum = 0.f;
  CUTE_UNROLL
  for (int i = 0; i < kVector; ++i) {
    sum = fmaf(float(reinterpret_cast<Element const*>(&a)[i]),
               float(reinterpret_cast<Element const*>(&b)[i]), sum);
  }
  return sum;
}

// Writes lse and delta of a query; of none, past the end.
CUTE_DEVICE void store_numbers(BackwardParams const& problem, QueryBlock const& block, int query,
                               int64_t at, float product) {
  float lse2 = INFINITY;
  float delta = 0.f;
  if (query < problem.seqlen_q) {
    int64_t const from =
        block.batch * problem.lse_stride_batch + block.head * problem.lse_stride_head + query;
    float const lse = device::load(problem.lse + from);
    if (lse != -INFINITY) {  // else it attends nothing
      lse2 = lse * kLog2e;
      delta = product - (problem.grad_lse ? device::load(problem.grad_lse + from) : 0.f);
    }
  }
  device::store(problem.lse2 + at, lse2);
  device::store(problem.delta + at, delta);
}

template <class Traits>
CUTE_DEVICE void preprocess_cta(BackwardParams const& problem) {
  using Element = typename Traits::Element;
  constexpr int kVector = 8;  // elements in 16 bytes
  constexpr int kLanesPerRow = Traits::kHeadDim / kVector;
  constexpr int kRowsAtATime = kPreprocessThreads / kLanesPerRow;
  device::wait_for_previous_kernel();
  device::launch_dependents();
  QueryBlock const block = QueryBlock::of(problem, device::block_idx());
  int const thread = device::thread_idx();
  int const column = thread % kLanesPerRow * kVector;
  int64_t const at = workspace_block(problem, block.batch, block.head, block.m_block);
  auto row_of = [&](void const* tensor, TensorStrides const& strides, int query) {
    return reinterpret_cast<uint4 const*>(static_cast<Element const*>(tensor) +
                                          block.batch * strides.batch + block.head * strides.head +
                                          query * strides.row + column);
  };
  CUTE_UNROLL
  for (int first = 0; first < Traits::kBlockM; first += kRowsAtATime) {
    int const row = first + thread / kLanesPerRow;
    int const query = block.m_block * Traits::kBlockM + row;
    float product = 0.f;
    if (query < problem.seqlen_q && column < problem.d_head) {
      product = dot<Element>(device::load(row_of(problem.o, problem.o_strides, query)),
                             device::load(row_of(problem.grad_o, problem.grad_o_strides, query)));
    }
    CUTE_UNROLL
    for (int lanes = kLanesPerRow / 2; lanes > 0; lanes /= 2) {
      product += device::shfl_xor(product, lanes);
    }
    if (column == 0) {
      store_numbers(problem, block, query, at * Traits::kBlockM + row, product);
    }
  }
  auto* const sums = reinterpret_cast<float4*>(problem.dq_sum + at * Traits::kBlockDQ);
  CUTE_UNROLL
  for (int i = 0; i < Traits::kBlockDQ / 4; i += kPreprocessThreads) {
    device::store(sums + i + thread, float4{});
  }
}

}  // namespace pyflash::sm90::backward
