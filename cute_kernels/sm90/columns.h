// Columns of an accumulator, as a thread holds them: two of every eight.
#pragma once

#include <cstdint>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/cute.h"

namespace pyflash::sm90 {

using namespace cute;

// The column of a thread's c-th, counted from its first.
CUTE_DEVICE constexpr int column_of(int c) { return 8 * (c / 2) + c % 2; }

// How many columns of a thread are before this one, counted from its first; beyond the block, too.
CUTE_DEVICE int columns_before(int column) { return 2 * (column >> 3) + min(column & 7, 2); }

// Sets what of row r lies outside of [begin, end), in columns counted from the thread's first, to `value`.
// rows: ((2,MMA_M),(2,V,MMA_N)).
// NOTE: by bits of words, of which ptxas turns seven at a time into predicates (R2P). Compared one by one, each value would
// take one instruction more, or two.
template <class Rows>
CUTE_DEVICE void set_outside(Rows& rows, int r, int begin, int end, float value) {
  constexpr int kColumns = decltype(size<1>(rows))::value;
  constexpr int kBits = 32;
  int const first = columns_before(begin);
  int const last = columns_before(end);
  CUTE_UNROLL
  for (int word = 0; word < kColumns; word += kBits) {
    uint32_t const inside = device::bits_between(first - word, last - word);
    CUTE_UNROLL
    for (int c = word; c < kColumns && c < word + kBits; ++c) {
      if ((inside >> (c - word) & 1) == 0) {
        rows(r, c) = value;
      }
    }
  }
}

}  // namespace pyflash::sm90
