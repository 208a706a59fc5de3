// Which keys a query attends, and which queries attend a key, for the host and the device. Query i of a sequence is aligned with
// key p = i + n_keys - n_queries, so that the last query is aligned with the last key. It attends the keys j with
//   p - window_left <= j <= p + window_right
// of its own chunk, if keys are divided into chunks: j / chunk = p / chunk, rounded down.
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

// The chunks of keys, in the columns of a band.
struct Chunks {
  int size;          // 0: none
  int first_key;     // that row 0 of the band is aligned with, or is
  int first_column;  // of key 0

  // The first column of a row's chunk.
  PYFLASH_HOST_DEVICE constexpr int begin(int row) const {
    int const key = first_key + row;
    int const chunk = (key < 0 ? key - (size - 1) : key) / size;  // rounded down
    return chunk * size + first_column;
  }
};

// The columns that rows attend: row r, counted from any row, attends [begin(r), end(r)), of which no column is below 0.
// kBegins, kEnds: whether the mask cuts columns before the diagonal, and after it. Chunks cut both.
template <bool kBegins, bool kEnds>
struct Band {
  int n_columns;
  int first_begin;  // of row 0, by its window
  int first_end;
  Chunks chunks;

  PYFLASH_HOST_DEVICE constexpr int begin(int row) const {
    if constexpr (kBegins && kEnds) {
      if (chunks.size != 0) {
        return larger(first_begin + row, chunks.begin(row));
      }
    }
    return kBegins ? first_begin + row : 0;
  }
  PYFLASH_HOST_DEVICE constexpr int end(int row) const {
    if constexpr (kBegins && kEnds) {
      if (chunks.size != 0) {
        return smaller(smaller(first_end + row, chunks.begin(row) + chunks.size), n_columns);
      }
    }
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
  int window_left = kNoWindow;  // none
  int window_right = kNoWindow;
  int chunk = 0;  // none

  PYFLASH_HOST_DEVICE constexpr bool cuts_left() const {
    return window_left < kNoWindow || chunk != 0;
  }
  PYFLASH_HOST_DEVICE constexpr bool cuts_right() const {
    return window_right < kNoWindow || chunk != 0;
  }
  friend constexpr bool operator==(Mask const&, Mask const&) = default;

  // The keys of queries. aligned: the key that row 0 of the band is aligned with.
  template <bool kLeft = true, bool kRight = true>
  PYFLASH_HOST_DEVICE constexpr Band<kLeft, kRight> keys_from(int aligned, int n_keys) const {
    return {.n_columns = n_keys,
            .first_begin = kLeft ? aligned - window_left : 0,
            .first_end = kRight ? aligned + window_right + 1 : n_keys,
            .chunks = {.size = chunk, .first_key = aligned, .first_column = 0}};
  }

  // The queries of keys: row 0 of the band is key first_key.
  template <bool kLeft = true, bool kRight = true>
  PYFLASH_HOST_DEVICE constexpr Band<kRight, kLeft> queries_from(int first_key, int n_queries,
                                                                 int n_keys) const {
    int const aligned = aligned_column(first_key, n_keys, n_queries);
    return {.n_columns = n_queries,
            .first_begin = kRight ? aligned - window_right : 0,
            .first_end = kLeft ? aligned + window_left + 1 : n_queries,
            .chunks = {.size = chunk, .first_key = first_key, .first_column = aligned - first_key}};
  }

  // The most keys that so many neighbouring queries attend together, in a sequence of any length.
  PYFLASH_HOST_DEVICE constexpr int64_t most_keys(int n_queries) const {
    int const most = chunk != 0 ? chunk - 1 : kNoWindow;  // on either side of a query
    return n_queries + int64_t(smaller(window_left, most)) + smaller(window_right, most);
  }
  // The most blocks of B_c keys that they attend together: keys that start inside of a block reach into one more.
  PYFLASH_HOST_DEVICE constexpr int64_t most_blocks(int n_queries, int B_c) const {
    return ceil_div(most_keys(n_queries), B_c) + 1;
  }
};

}  // namespace pyflash
