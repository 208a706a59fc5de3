// Which scores of a block count, by the rows and columns of a thread (common/mask.h).
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
struct ScoreMask {
  BackwardParams const& problem;
  int const first_key;  // of the warpgroup

  // Whether some key is not attended by some query of the block.
  // NOTE: queries past the end are no matter: P is 0 there, since lse is infinite.
  CUTE_DEVICE bool cuts(int m_block) const {
    Interval const uncut = queries_from<kFeatures>(problem, first_key).of_all(Traits::kMmaM);
    return first_key + Traits::kMmaM > problem.k_sequences().longest ||
           m_block * Traits::kBlockM < uncut.begin ||
           (kFeatures.left_window && (m_block + 1) * Traits::kBlockM > uncut.end);
  }

  // Sets P to 0 where it does not count.
  template <class Rows>
  CUTE_DEVICE void apply(Rows& P, int m_block) const {
    int const thread = device::fresh_thread_idx() % kWarpgroup;
    int const first_query = m_block * Traits::kBlockM + thread % 4 * 2;  // of the thread
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      int const key = first_key + thread / 32 * 16 + thread % 32 / 4 + 8 * r;
      auto const queries = queries_from<kFeatures>(problem, key);
      // NOTE: keys past the end score 0, which may be far above lse.
      int const end = key < problem.k_sequences().longest ? queries.end(0) : 0;
      set_outside(P, r, queries.begin(0) - first_query, end - first_query, 0.f);
    }
  }
};

}  // namespace pyflash::sm90::backward
