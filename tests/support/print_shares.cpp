// Makes lists of equal shares by any number of threads, and prints them. A line of input is a list:
//   threads heads n_queries B_c n_shares window_left window_right chunk longest_q longest_k is_paged batch, lengths of q, of k
// A line of output is its size in ints, the number of units and the size of a share; sequence, head, first unit and units of each share;
// and of each share the parts of the tile that is cut first where it begins: sequence, head, first and last share, and their
// places.
#include <atomic>
#include <barrier>
#include <iostream>
#include <iterator>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "cute_kernels/common/shares.h"

namespace {

using namespace pyflash;

struct OneOfMany {
  int number;
  int n_threads;
  std::barrier<>* barrier;

  int index() const { return number; }
  int count() const { return n_threads; }
  void sync() const { barrier->arrive_and_wait(); }
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
    ShareListing listing{};
    Mask& mask = listing.mask;
    bool is_paged = false;
    std::cin >> listing.heads >> listing.n_queries >> listing.B_c >> listing.n_shares >>
        mask.window_left >> mask.window_right >> mask.chunk >> listing.q.longest >>
        listing.k.longest >> is_paged >> listing.batch;
    std::vector<int> lengths_q(listing.batch), lengths_k(listing.batch);
    for (std::vector<int>* lengths : {&lengths_q, &lengths_k}) {
      for (int& length : *lengths) {
        std::cin >> length;
      }
    }
    std::vector<int> const starts_q = starts_of(lengths_q), starts_k = starts_of(lengths_k);
    listing.q = Sequences::packed(starts_q.data(), listing.q.longest, starts_q.back());
    int const no_page = 0;
    if (is_paged) {
      listing.pages.table = &no_page;
      listing.pages.lengths = lengths_k.data();
    } else {
      listing.k = Sequences::packed(starts_k.data(), listing.k.longest, starts_k.back());
    }

    // NOTE: not zeros: a list is made where another was.
    std::vector<int> list(listing.size() + 2, -7);
    auto const shared = std::make_unique<ShareListStorage>();
    std::barrier barrier(n_threads);
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < n_threads; ++i) {
        threads.emplace_back([&, i] {
          write_shares(listing, list.data(), *shared, OneOfMany{i, n_threads, &barrier},
                       HostLoader{});
        });
      }
    }
    bool const is_inside = list[listing.size()] == -7 && list[listing.size() + 1] == -7;
    std::cout << (is_inside ? listing.size() : -1) << ' ' << list[0] << ' ' << list[1];
    for (int i = 0; i < 4 * listing.n_shares; ++i) {
      std::cout << ' ' << list[ShareListing::kHeader + i];
    }
    for (int i = 0; i < listing.n_shares; ++i) {
      Parts const parts = parts_of(listing, list.data(), i);
      if (parts.count() > 0) {
        std::cout << ' ' << parts.sequence << ' ' << parts.head << ' ' << parts.first << ' '
                  << parts.last;
        for (int part = 0; part < parts.count(); ++part) {
          std::cout << ' ' << parts.place(part);
        }
      }
    }
    std::cout << '\n';
  }
}
