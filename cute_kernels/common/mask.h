// Which keys a query attends, and which queries attend a key, for the host and the device. Query i of a sequence is aligned with
// key p = i + n_keys - n_queries, so that the last query is aligned with the last key. It attends the keys j with
//   p - window_left <= j <= p + window_right.
// These pairs are a band about the diagonal j = p, with keys as rows and queries as columns too.
#pragma once

#include <cstdint>

#include "cute_kernels/common/integers.h"

namespace pyflash {

// A window that cuts nothing. Extents are at most half of it, so that sums of the two are ints.
inline constexpr int kNoWindow = 1 << 30;

// The column that a row of a sequence is aligned with.
PYFLASH_HOST_DEVICE constexpr int aligned_column(int row, int n_rows, int n_columns) {
  return row + (n_columns - n_rows);
}

// The columns that rows attend: row r, counted from any row, attends [begin(r), end(r)), of which no column is below 0.
// kBegins, kEnds: whether the mask cuts columns before the diagonal, and after it.
template <bool kBegins, bool kEnds>
struct Band {
  int n_columns;
  int first_begin;  // of row 0
  int first_end;

  PYFLASH_HOST_DEVICE constexpr int begin(int row) const { return kBegins ? first_begin + row : 0; }
  PYFLASH_HOST_DEVICE constexpr int end(int row) const {
    return kEnds ? smaller(first_end + row, n_columns) : n_columns;
  }

  // The columns that some of the first n_rows rows attend, and those that all of them attend. n_rows >= 1.
  PYFLASH_HOST_DEVICE constexpr Interval of_some(int n_rows) const {
    return {begin(0), end(n_rows - 1)};
  }
  PYFLASH_HOST_DEVICE constexpr Interval of_all(int n_rows) const {
    return {begin(n_rows - 1), end(0)};
  }
};

struct Mask {
  int window_left;  // kNoWindow: none
  int window_right;

  PYFLASH_HOST_DEVICE constexpr bool cuts_left() const { return window_left < kNoWindow; }
  PYFLASH_HOST_DEVICE constexpr bool cuts_right() const { return window_right < kNoWindow; }
  friend constexpr bool operator==(Mask const&, Mask const&) = default;

  // The keys of queries. aligned: the key that row 0 of the band is aligned with.
  template <bool kLeft = true, bool kRight = true>
  PYFLASH_HOST_DEVICE constexpr Band<kLeft, kRight> keys_from(int aligned, int n_keys) const {
    return {.n_columns = n_keys,
            .first_begin = kLeft ? aligned - window_left : 0,
            .first_end = kRight ? aligned + window_right + 1 : n_keys};
  }

  // The queries of keys. aligned: the query that row 0 of the band, a key, is aligned with.
  template <bool kLeft = true, bool kRight = true>
  PYFLASH_HOST_DEVICE constexpr Band<kRight, kLeft> queries_from(int aligned, int n_queries) const {
    Mask const exchanged{.window_left = window_right, .window_right = window_left};
    return exchanged.keys_from<kRight, kLeft>(aligned, n_queries);
  }

  // The most keys that so many neighbouring queries attend together, in a sequence of any length.
  PYFLASH_HOST_DEVICE constexpr int64_t most_keys(int n_queries) const {
    return n_queries + int64_t(window_left) + window_right;
  }
};

}  // namespace pyflash
