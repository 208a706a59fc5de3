// Makes lists of tiles by any number of threads, and prints them. A line of input is a list:
//   threads n_queries B_c window_left window_right chunk least_rows cost cost_of_block heads n_ctas share_heads longest_q longest_k batch, lengths of q, of k
// where least_rows - 1 rows and 64 keys are a tile and a block of who runs beside, and share_heads below 0 means nobody does.
// A line of output is its size in ints, the number of tiles, of CTAs, and sequence, m_block and blocks of keys of each.
#include <iostream>
#include <vector>

#include "cute_kernels/common/tile_list.h"
#include "lists_by_threads.h"

using namespace pyflash;

int main() {
  int n_threads = 0;
  while (std::cin >> n_threads) {
    TileListing listing{};
    Mask& mask = listing.mask;
    ShareListing& shares = listing.shares;
    Beside& beside = listing.beside;
    std::cin >> listing.n_queries >> listing.B_c >> mask.window_left >> mask.window_right >>
        mask.chunk >> listing.least_rows >> beside.cost >> beside.cost_of_block >> beside.heads >>
        beside.n_ctas >> shares.heads >> listing.q.longest >> listing.k.longest >> listing.batch;
    Lengths const lengths_q(listing.batch), lengths_k(listing.batch);
    listing.q = lengths_q.packed(listing.q.longest);
    listing.k = lengths_k.packed(listing.k.longest);

    shares.q = listing.q;
    shares.k = listing.k;
    shares.mask = mask;
    shares.n_queries = listing.least_rows - 1;
    shares.B_c = 64;
    int no_list = 0;
    beside.list = shares.heads < 0 ? nullptr : &no_list;
    std::vector<int> const list = print_size_of_list<TileListStorage>(
        listing.size(), n_threads,
        [&](int* made, TileListStorage& shared, OneOfMany const& thread) {
          write_tile_list(listing, made, shared, thread, HostLoader{});
        });
    std::cout << ' ' << list[0] << ' ' << list[1];
    for (int i = 0; i < list[0]; ++i) {
      int const sequence = list[2 + 2 * i], m_block = list[3 + 2 * i];
      std::cout << ' ' << sequence << ' ' << m_block << ' '
                << listing.count_blocks(m_block, lengths_q.all[sequence], lengths_k.all[sequence]);
    }
    std::cout << '\n';
  }
}
