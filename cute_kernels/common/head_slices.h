// How many heads of K and V a backward runs for at a time, one slice of them after another, where the sums of all of them would take
// too much memory.
#pragma once

#include <cstdint>

#include "cute_kernels/common/integers.h"

namespace pyflash {

struct HeadSlices {
  int64_t n_heads;  // of all batches
  int64_t unit;     // slices have multiples of as many heads, a divisor of n_heads
  int64_t n_tiles;  // of a head
  int n_ctas;       // that run at a time

  // The heads of a slice whose sums take `bytes`, or which have `least` tiles where these are more; at most `most` heads.
  constexpr int limited(int64_t bytes_of_head, int64_t bytes, int64_t least, int most) const {
    int64_t n = bytes_of_head > 0 ? bytes / bytes_of_head : n_heads;
    int64_t const of_least = n_tiles > 0 ? least / n_tiles : 1;
    n = n > of_least ? n : of_least;
    n = n > unit ? n / unit * unit : unit;
    return int(n < most ? n : most);
  }

  // Fewer heads of a slice than `most`, where these make fewer rounds of CTAs: those of a slice end before the next one begins. A
  // slice costs a sixteenth of a round beside. Where it has many rounds, no more than one of them is at stake.
  constexpr int filled(int most) const {
    constexpr int kManyRounds = 32;
    int64_t best = most;
    int64_t rounds = most * n_tiles / n_ctas;
    for (rounds = rounds < kManyRounds ? rounds : 0; rounds > 0; --rounds) {
      int64_t const n = rounds * n_ctas / n_tiles / unit * unit;
      if (n > 0 && cost(n) < cost(best)) {
        best = n;
      }
    }
    return int(best);
  }

 private:
  constexpr int64_t cost_of_one(int64_t n) const { return 16 * ceil_div(n * n_tiles, n_ctas) + 1; }
  constexpr int64_t cost(int64_t n) const {
    return n_heads / n * cost_of_one(n) + (n_heads % n > 0 ? cost_of_one(n_heads % n) : 0);
  }
};

}  // namespace pyflash
