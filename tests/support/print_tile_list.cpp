// Makes lists of tiles by any number of threads, and prints them. A line of input is a list:
//   threads n_queries B_c window_left window_right chunk least_rows most_rows longest_q longest_k batch, lengths of q, of k
// A line of output is its size in ints, the number of tiles, and sequence, m_block and blocks of keys of each.
#include <atomic>
#include <barrier>
#include <cstdint>
#include <iostream>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "cute_kernels/common/tile_list.h"

namespace {

using namespace pyflash;

struct OneOfMany {
  int number;
  int n_threads;
  std::barrier<>* barrier;

  int index() const { return number; }
  int count() const { return n_threads; }
  void sync() const { barrier->arrive_and_wait(); }
  int add(int& value, int n) const { return std::atomic_ref(value).fetch_add(n); }
};

std::vector<int> starts_of(std::vector<int> const& lengths) {
  std::vector<int> starts{0};
  std::inclusive_scan(lengths.begin(), lengths.end(), std::back_inserter(starts));
  return starts;
}

}  // namespace

int main() {
  int n_threads = 0;
  while (std::cin >> n_threads) {
    TileListing listing{};
    Mask& mask = listing.mask;
    std::cin >> listing.n_queries >> listing.B_c >> mask.window_left >> mask.window_right >>
        mask.chunk >> listing.least_rows >> listing.most_rows >> listing.q.longest >>
        listing.k.longest >> listing.batch;
    std::vector<int> lengths_q(listing.batch), lengths_k(listing.batch);
    for (std::vector<int>* lengths : {&lengths_q, &lengths_k}) {
      for (int& length : *lengths) {
        std::cin >> length;
      }
    }
    std::vector<int> const starts_q = starts_of(lengths_q), starts_k = starts_of(lengths_k);
    listing.q = Sequences::packed(starts_q.data(), listing.q.longest, starts_q.back());
    listing.k = Sequences::packed(starts_k.data(), listing.k.longest, starts_k.back());

    // NOTE: not zeros: a list is made where another was.
    std::vector<int> list(listing.size() + 2, -7);
    auto const shared = std::make_unique<TileListStorage>();
    std::barrier barrier(n_threads);
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < n_threads; ++i) {
        threads.emplace_back([&, i] {
          write_tile_list(listing, list.data(), *shared, OneOfMany{i, n_threads, &barrier},
                          HostLoader{});
        });
      }
    }
    bool const is_inside = list[listing.size()] == -7 && list[listing.size() + 1] == -7;
    std::cout << (is_inside ? listing.size() : -1) << ' ' << list[0];
    for (int i = 0; i < list[0]; ++i) {
      int const sequence = list[2 + 2 * i], m_block = list[3 + 2 * i];
      std::cout << ' ' << sequence << ' ' << m_block << ' '
                << listing.count_blocks(m_block, lengths_q[sequence], lengths_k[sequence]);
    }
    std::cout << '\n';
  }
}
