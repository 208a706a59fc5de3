// Which scores of a Q block count, by its rows and columns (common/mask.h).
#pragma once

#include <cmath>

#include <cute/tensor_impl.hpp>

#include "cute_kernels/common/mask.h"
#include "cute_kernels/sm80/copy.h"

namespace pyflash::sm80 {

using namespace cute;

// kEnds, kBegins: whether there is a window to the right, and to the left; without, the end of the sequence alone cuts.
template <int kBlockN, bool kEnds, bool kBegins>
struct ScoreMask {
  Band<kBegins, kEnds> keys;  // row 0: the Q block's first
  int n_rows;                 // of the Q block, at least 1

  // aligned: the key that the block's first row is aligned with.
  CUTE_DEVICE ScoreMask(Mask const& mask, int n_keys, int n_rows, int aligned)
      : keys(mask.keys_from<kBegins, kEnds>(aligned, n_keys)), n_rows(n_rows) {}

  // The blocks of keys of which some row attends a part, and those of which every row attends all.
  CUTE_DEVICE Interval blocks() const { return keys.of_some(n_rows).blocks_touched(kBlockN); }
  CUTE_DEVICE Interval uncut_blocks() const { return keys.of_all(n_rows).blocks_covered(kBlockN); }

  // Sets the scores that do not count to -inf. S: by rows and columns, whose places in the block are `first` and, from there,
  // Rows and Columns.
  template <class Rows, class Columns, class S>
  CUTE_DEVICE void apply(S&& scores, Coord const& first, int n_block) const {
    int const first_key = n_block * kBlockN + first.column;
    CUTE_UNROLL
    for (int r = 0; r < size<0>(scores); ++r) {
      int const row = first.row + Rows{}(r);
      int const end = keys.end(row);
      CUTE_UNROLL
      for (int c = 0; c < size<1>(scores); ++c) {
        int const column = Columns{}(c);
        bool const too_early = kBegins && column < keys.begin(row) - first_key;
        if (too_early || column >= end - first_key) {
          scores(r, c) = -INFINITY;
        }
      }
    }
  }
};

}  // namespace pyflash::sm80
