// Which scores of a block count, by the rows and columns of a thread (common/mask.h).
#pragma once

#include "cute_kernels/sm90/backward/problem.h"
#include "cute_kernels/sm90/backward/threads.h"
#include "cute_kernels/sm90/columns.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/gemm.h"
#include "cute_kernels/sm90/shape.h"

namespace pyflash::sm90::backward {

using namespace cute;

// Masks one warpgroup's keys, which are rows; a thread holds two. Queries are columns.
// NOTE: it keeps nothing of its own: the loop that it is asked in has no registers left.
template <class Traits, BackwardFeatures kFeatures>
struct ScoreMask {
  Tile<kFeatures> const& tile;
  int const first_key;  // of the warpgroup

  // Whether some key is not attended by some query of the block.
  // NOTE: queries past the end are no matter: P is 0 there, since lse is infinite.
  CUTE_DEVICE bool cuts(int m_block) const {
    Interval const uncut = tile.queries_from(first_key).of_all(Traits::kMmaM);
    return first_key + Traits::kMmaM > tile.keys().length ||
           m_block * Traits::kBlockM < uncut.begin ||
           (kFeatures.left_window && (m_block + 1) * Traits::kBlockM > uncut.end);
  }

  // Those of a thread.
  CUTE_DEVICE int first_query(int m_block) const {
    return m_block * Traits::kBlockM + fresh_lane() % 4 * 2;
  }
  CUTE_DEVICE int key(int r) const {
    int const thread = fresh_thread();
    return first_key + thread / 32 * 16 + thread % 32 / 4 + 8 * r;
  }

  // Sets P, or what P is computed of, to `value` where it does not count.
  template <class Rows>
  CUTE_DEVICE void apply(Rows& P, int m_block, float value) const {
    int const first = first_query(m_block);
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      auto const queries = tile.queries_from(key(r));
      // NOTE: keys past the end score 0, which may be far above lse.
      int const end = key(r) < tile.keys().length ? queries.end(0) : 0;
      set_outside(P, r, queries.begin(0) - first, end - first, value);
    }
  }
};

}  // namespace pyflash::sm90::backward
