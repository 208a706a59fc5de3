// Which scores of a Q block count. Query i of a sequence attends the keys j with
//   -window_left <= j - (i + seqlen_k - seqlen_q) <= window_right
// so that the last query and the last key are aligned.
#pragma once

#include <cmath>

#include <cute/tensor_impl.hpp>

#include "cute_kernels/params.h"
#include "cute_kernels/sm80/copy.h"

namespace pyflash::sm80 {

using namespace cute;

// kEnds, kBegins: whether there is a window to the right, and to the left; without, the end of the sequence alone cuts.
template <int kBlockN, bool kEnds, bool kBegins>
struct Mask {
  int n_keys;
  int n_rows;  // of the Q block, at least 1
  // What its first row attends, [begin, end) before it is cut to [0, n_keys); for each row further on, one more.
  int first_begin;
  int first_end;

  // diagonal: the key that the block's first row is aligned with.
  CUTE_DEVICE Mask(ForwardParams const& params, int n_keys, int n_rows, int diagonal)
      : n_keys(n_keys),
        n_rows(n_rows),
        first_begin(kBegins ? diagonal - params.window_left : 0),
        first_end(kEnds ? diagonal + params.window_right + 1 : n_keys) {}

  // The blocks of keys of which some row attends a part: [begin_block, end_block).
  CUTE_DEVICE int begin_block() const { return kBegins ? max(first_begin, 0) / kBlockN : 0; }
  CUTE_DEVICE int end_block() const {
    int const end = kEnds ? min(first_end + n_rows - 1, n_keys) : n_keys;
    return ceil_div(max(end, 0), kBlockN);
  }

  // And those that every row attends all of: [uncut_begin_block, uncut_end_block), where that is not empty.
  CUTE_DEVICE int uncut_begin_block() const {
    return kBegins ? ceil_div(max(first_begin + n_rows - 1, 0), kBlockN) : 0;
  }
  CUTE_DEVICE int uncut_end_block() const { return max(min(first_end, n_keys), 0) / kBlockN; }

  // Sets the scores that do not count to -inf. S: by rows and columns, whose places in the block are `first` and, from there,
  // Rows and Columns.
  template <class Rows, class Columns, class S>
  CUTE_DEVICE void apply(S&& scores, Coord const& first, int n_block) const {
    int const first_key = n_block * kBlockN + first.column;
    CUTE_UNROLL
    for (int r = 0; r < size<0>(scores); ++r) {
      int const row = first.row + Rows{}(r);
      int const end = kEnds ? min(first_end + row, n_keys) : n_keys;
      CUTE_UNROLL
      for (int c = 0; c < size<1>(scores); ++c) {
        int const column = Columns{}(c);
        bool const too_early = kBegins && column < first_begin + row - first_key;
        if (too_early || column >= end - first_key) {
          scores(r, c) = -INFINITY;
        }
      }
    }
  }
};

}  // namespace pyflash::sm80
