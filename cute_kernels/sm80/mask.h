// Which scores of a Q block count. Query i of a sequence attends the keys j with
//   -window_left <= j - (i + seqlen_k - seqlen_q) <= window_right
// so that the last query and the last key are aligned.
#pragma once

#include <cmath>

#include <cute/tensor.hpp>

#include "cute_kernels/params.h"

namespace pyflash::sm80 {

using namespace cute;

// Without kWindowed every query attends every key, and only the end of the sequence cuts blocks.
template <int kBlockN, bool kWindowed>
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
        first_begin(kWindowed ? diagonal - params.window_left : 0),
        first_end(kWindowed ? diagonal + params.window_right + 1 : n_keys) {}

  // The key blocks of which some row attends a part; outside of them the loop does not go.
  CUTE_DEVICE int begin_block() const { return kWindowed ? max(first_begin, 0) / kBlockN : 0; }
  CUTE_DEVICE int end_block() const {
    int const end = kWindowed ? min(first_end + n_rows - 1, n_keys) : n_keys;
    return ceil_div(max(end, 0), kBlockN);
  }

  // Whether some row attends less than the whole block.
  CUTE_DEVICE bool cuts(int n_block) const {
    int const begin = n_block * kBlockN;
    return begin + kBlockN > min(first_end, n_keys) || begin < first_begin + n_rows - 1;
  }

  // Sets the scores that do not count to -inf. coords: (row, column) in the block, partitioned like acc_S.
  template <class AccS, class CoordTensor>
  CUTE_DEVICE void apply(AccS& acc_S, CoordTensor const& coords, int n_block) const {
    int const first_key = n_block * kBlockN;
    CUTE_UNROLL
    for (int i = 0; i < size(acc_S); ++i) {
      int const row = get<0>(coords(i));
      int const column = get<1>(coords(i));
      bool counts = column < n_keys - first_key;
      if constexpr (kWindowed) {
        counts = column < min(first_end + row, n_keys) - first_key &&
                 column >= first_begin + row - first_key;
      }
      if (!counts) {
        acc_S(i) = -INFINITY;
      }
    }
  }
};

}  // namespace pyflash::sm80
