// Sections of heads, in each of which tiles under a mask go from the longest to the shortest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace pyflash::sm90 {

struct Sections {
  int64_t heads;  // batches and splits too; the last section may have more or fewer
  int64_t last;   // its number
};

// n_ctas: that run at a time. n_rest: heads, batches and splits. heads_per_kv: of Q. bytes_of_kv: of one head's keys and values.
// most_heads: of a section.
inline Sections divide_into_sections(bool persistent, int64_t n_ctas, int64_t n_m_blocks,
                                     int64_t n_rest, int heads_per_kv, int64_t bytes_of_kv,
                                     int64_t most_heads = INT64_MAX) {
  constexpr int64_t kL2Bytes = 36 << 20;
  int64_t heads = std::max<int64_t>(kL2Bytes / std::max<int64_t>(bytes_of_kv, 1) * heads_per_kv, 1);
  if (persistent) {
    // Each CTA takes as long over a section as any other where a section is a number of double rounds. One of them: in a
    // longer section all CTAs would begin with their longest tiles, and read new keys, at the same time.
    int64_t const rounds = 2 * n_ctas;
    int64_t const unit = rounds / std::gcd(rounds, n_m_blocks);
    // Too many heads in a section cost less than CTAs that wait for others, up to twice what L2 holds.
    heads = 2 * heads >= unit ? unit : n_rest;
  }
  heads = std::min({heads, n_rest, most_heads});
  // What is left of a round would be one tile for some CTAs and none for others, and goes with the section before.
  int64_t const left = n_rest % heads;
  bool const joins = left * n_m_blocks < n_ctas && heads + left <= most_heads;
  return {.heads = heads, .last = n_rest / heads - (joins ? 1 : 0)};
}

}  // namespace pyflash::sm90
