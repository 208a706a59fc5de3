// Runs the kernel of list_tiles.cu on the CPU, where another kernel runs beside or none does. A line of input is a batch:
//   heads_kv n_shares longest_q longest_k batch, lengths of q, of k
// where n_shares 0 means that none does. A line of output: whether each list is that of one thread, and the ints of the other's that
// were written.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <vector>

#include "cta_on_host.h"
//
#include "cute_kernels/list_tiles.cu"
#include "lists_by_threads.h"

using namespace pyflash;

int main() {
  int n_shares = 0, longest_q = 0, longest_k = 0;
  Forward::Params params{};
  while (std::cin >> params.heads_kv >> n_shares >> longest_q >> longest_k >> params.batch) {
    constexpr int kUnwritten = -7, kFewRows = 16;
    Lengths const q(params.batch), k(params.batch);
    params.heads = 4 * params.heads_kv;
    params.set_q_sequences(q.packed(longest_q));
    params.sequence_starts.k = k.starts.data();
    params.sequence_lengths.longest_k = longest_k;
    params.sequence_lengths.total_k = k.starts.back();
    params.set_mask({.window_left = kNoWindow, .window_right = 0, .chunk = 0});
    Forward::Params few = params;
    few.set_q_sequences(q.packed(std::min(longest_q, kFewRows)));
    share_keys(few, {.B_r = 64, .B_c = 64, .packs_heads = true}, std::max(n_shares, 1));
    params.tile_queries = params.tile_keys = 128;
    params.least_listed_rows = kFewRows + 1;
    params.shares_beside = few.share_listing();
    std::vector<int> shares(params.shares_beside.size(), kUnwritten), expected_shares = shares;
    params.beside = {.list = n_shares > 0 ? shares.data() : nullptr,
                     .cost = 64 * 64,
                     .cost_of_block = 128 * 128,
                     .heads = params.heads,
                     .n_ctas = 132};
    std::vector<int> tiles(params.tile_listing().size(), kUnwritten), expected_tiles = tiles;
    params.tile_list = reinterpret_cast<float*>(tiles.data());
    int const error = list_tiles(params, DType::BF16, nullptr);

    auto const of_tiles = std::make_unique<TileListStorage>();
    write_tile_list(params.tile_listing(), expected_tiles.data(), *of_tiles, OneThread{},
                    HostLoader{});
    auto const of_shares = std::make_unique<ShareListStorage>();
    write_shares(params.shares_beside, expected_shares.data(), *of_shares, OneThread{},
                 HostLoader{});
    // NOTE: tiles of as many blocks are in any order.
    auto const sorted = [](std::vector<int> const& list) {
      std::vector<std::pair<int, int>> pairs;
      for (int i = 1; i <= list[0]; ++i) {
        pairs.emplace_back(list[2 * i], list[2 * i + 1]);
      }
      std::sort(pairs.begin(), pairs.end());
      return pairs;
    };
    bool const same_tiles = tiles[0] == expected_tiles[0] && tiles[1] == expected_tiles[1] &&
                            sorted(tiles) == sorted(expected_tiles);
    auto const n_written = shares.size() - std::count(shares.begin(), shares.end(), kUnwritten);
    std::cout << (error == 0 && same_tiles) << ' ' << (shares == expected_shares) << ' '
              << n_written << '\n';
  }
}
