// Plays the turns in which blocks of keys add to the sums of dQ of a block of queries, for random masks and lengths. Prints the number
// of sums, or the first case in which one waits for ever, is added to out of order, or is left with a turn that nobody takes.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "cute_kernels/backward_params.h"

using namespace pyflash;

namespace {

// The blocks of queries that a tile of keys visits, as Tile has them.
template <bool kLeft, bool kRight>
Interval visited(BackwardParams const& params, int n_queries, int n_keys, int n_block) {
  int const first_key = n_block * params.block_k;
  int const n = smaller(n_keys - first_key, params.block_k);
  return params.mask.queries_from<kLeft, kRight>(first_key, n_queries, n_keys)
      .of_some(n)
      .blocks_touched(params.block_q);
}

int play(BackwardParams const& params, int n_queries, int n_keys) {
  int const n_sums = ceil_div(n_queries, params.block_q);
  std::vector<int> turns, visits(n_sums, 0);
  for (int m = 0; m < n_sums; ++m) {
    turns.push_back(params.first_turn(m * params.block_q, n_queries, n_keys));
  }
  auto const fail = [&](char const* what, int m, int n) {
    std::printf(
        "%s: %d queries in blocks of %d, %d keys in blocks of %d, windows %d and %d, chunk %d, "
        "sum %d, block of keys %d\n",
        what, n_queries, params.block_q, n_keys, params.block_k, params.mask.window_left,
        params.mask.window_right, params.mask.chunk, m, n);
    std::exit(1);
  };
  // In the order in which tiles start, each to its end: a tile waits for those before it alone.
  int const n_blocks = ceil_div(n_keys, params.block_k);
  for (int i = 0; i < n_blocks; ++i) {
    int const n = params.first_keys_first ? i : n_blocks - 1 - i;
    Interval blocks = visited<true, true>(params, n_queries, n_keys, n);
    if (!params.mask.cuts_left() && !params.mask.cuts_right()) {
      Interval const full = visited<false, false>(params, n_queries, n_keys, n);
      if (full.begin != blocks.begin || full.end != blocks.end) {
        fail("a kernel without masks visits others", full.begin, n);
      }
    }
    for (int m = blocks.begin; m < blocks.end; ++m) {
      if (m >= n_sums) {
        fail("a sum that is none", m, n);
      }
      int const turn = params.turn_of(n);
      if (turns[m] != turn) {
        fail(turns[m] > turn ? "waits for ever" : "adds out of order", m, n);
      }
      turns[m] = turn - 1;
      ++visits[m];
    }
  }
  for (int m = 0; m < n_sums; ++m) {
    int const next = params.turn_of(turns[m]);  // which is its own inverse
    if (visits[m] > 0 && 0 <= next && next < n_blocks && m * params.block_q < n_queries) {
      // The next turn is of a block of keys that none of these queries attends.
      Interval const blocks = visited<true, true>(params, n_queries, n_keys, next);
      if (m >= blocks.begin && m < blocks.end) {
        fail("a turn is left", m, next);
      }
    }
  }
  return n_sums;
}

}  // namespace

int main() {
  std::mt19937 random(0);
  auto const below = [&](int n) { return int(random() % unsigned(n)); };
  int n_sums = 0;
  for (int i = 0; i < 60'000; ++i) {
    BackwardParams params{};
    params.heads_kv = 1;
    params.heads = 1 + below(2);
    int const longest = below(4) ? 1500 : 300;
    auto const window = [&] { return below(3) ? below(longest) : below(2) ? 0 : kNoWindow; };
    params.mask = {window(), window(), below(4) ? 0 : 1 + below(400)};
    if (below(5) == 0) {
      params.mask = {};
    }
    params.deterministic = true;
    constexpr int kDHeads[] = {64, 128, 192, 256};
    params.set_shape({.B_r = below(2) ? 64 : 128,
                      .B_c = below(2) ? 64 : 128,
                      .d_head = kDHeads[below(4)],
                      .lanes_are_neighbours = below(2) == 0});
    n_sums += play(params, below(longest), below(longest));
  }
  std::printf("%d\n", n_sums);
}
