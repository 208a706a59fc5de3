// Makes lists of equal shares by any number of threads, and prints them. A line of input is a list:
//   threads heads abreast n_queries B_c n_shares window_left window_right chunk longest_q longest_k is_paged batch, lengths of q, of k
// A line of output is its size in ints, the number of units and the size of a share; sequence, head, first unit and units of each share;
// and of each CTA the parts of the tile that is cut first where its share begins: sequence, head, the first CTA, and their places.
#include <iostream>
#include <vector>

#include "cute_kernels/common/shares.h"
#include "lists_by_threads.h"

using namespace pyflash;

int main() {
  int n_threads = 0;
  while (std::cin >> n_threads) {
    ShareListing listing{};
    Mask& mask = listing.mask;
    bool is_paged = false;
    std::cin >> listing.heads >> listing.abreast >> listing.n_queries >> listing.B_c >>
        listing.n_shares >> mask.window_left >> mask.window_right >> mask.chunk >>
        listing.q.longest >> listing.k.longest >> is_paged >> listing.batch;
    Lengths const lengths_q(listing.batch), lengths_k(listing.batch);
    listing.q = lengths_q.packed(listing.q.longest);
    int const no_page = 0;
    if (is_paged) {
      listing.pages.table = &no_page;
      listing.pages.lengths = lengths_k.all.data();
    } else {
      listing.k = lengths_k.packed(listing.k.longest);
    }

    std::vector<int> const list = print_size_of_list<ShareListStorage>(
        listing.size(), n_threads,
        [&](int* made, ShareListStorage& shared, OneOfMany const& thread) {
          write_shares(listing, made, shared, thread, HostLoader{});
        });
    std::cout << ' ' << list[0] << ' ' << list[1];
    for (int i = 0; i < 4 * listing.n_shares; ++i) {
      std::cout << ' ' << list[ShareListing::kHeader + i];
    }
    for (int i = 0; i < listing.n_shares * listing.abreast; ++i) {
      Parts const parts = parts_of(listing, list.data(), i);
      if (parts.count() > 0) {
        std::cout << ' ' << parts.sequence << ' ' << parts.head << ' ' << parts.first;
        for (int part = 0; part < parts.count(); ++part) {
          std::cout << ' ' << parts.place(part);
        }
      }
    }
    std::cout << '\n';
  }
}
