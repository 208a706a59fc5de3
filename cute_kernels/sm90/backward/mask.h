// Which scores of a block count. Query i attends the keys j with
//   -window_left <= j - (i + seqlen_k - seqlen_q) <= window_right
// so that the last query and the last key are aligned.
#pragma once

#include <cute/tensor.hpp>

#include "cute_kernels/sm90/backward/problem.h"
#include "cute_kernels/sm90/columns.h"
#include "cute_kernels/sm90/gemm.h"
#include "cute_kernels/sm90/shape.h"

namespace pyflash::sm90::backward {

using namespace cute;

// Of one warpgroup's keys, which are rows; a thread holds two. Queries are columns.
// NOTE: it keeps nothing of its own: the loop that it is asked in has no registers left.
template <class Traits, BackwardFeatures kFeatures>
struct Mask {
  BackwardParams const& problem;
  int const first_key;  // of the warpgroup

  // Whether some key is not attended by some query of the block.
  CUTE_DEVICE bool cuts(int m_block) const {
    int const end_key = first_key + Traits::kMmaM;
    return end_key > problem.seqlen_k || m_block * Traits::kBlockM < begin_of(end_key - 1) ||
           (m_block + 1) * Traits::kBlockM > end_of(first_key);
  }

  // Sets P to 0 where it does not count.
  template <class Rows>
  CUTE_DEVICE void apply(Rows& P, int m_block) const {
    int const thread = device::fresh_thread_idx() % kWarpgroup;
    int const first_query = m_block * Traits::kBlockM + thread % 4 * 2;  // of the thread
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      int const key = first_key + thread / 32 * 16 + thread % 32 / 4 + 8 * r;
      int const begin = begin_of(key) - first_query;
      // NOTE: keys past the end score 0, which may be far above lse.
      int const end = (key < problem.seqlen_k ? end_of(key) : 0) - first_query;
      set_outside(P, r, begin, end, 0.f);
    }
  }

 private:
  // The queries that attend a key: [begin, end), as far as there are any.
  CUTE_DEVICE int begin_of(int key) const {
    return kFeatures.right_window ? aligned_with(key) - problem.window_right : 0;
  }
  CUTE_DEVICE int end_of(int key) const {
    return kFeatures.left_window ? aligned_with(key) + problem.window_left + 1 : kNoWindow;
  }
  CUTE_DEVICE int aligned_with(int key) const {
    return key - (problem.seqlen_k - problem.seqlen_q);
  }
};

}  // namespace pyflash::sm90::backward
