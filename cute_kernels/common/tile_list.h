// The tiles of sequences that have different lengths, as a list that is made where the lengths are, on the device: every tile
// of every sequence once, those with the most blocks of keys first. A tile stands for itself in each head.
//
// Sequences of few rows may be left to another kernel, which runs beside.
//
// A list is memory of ints: the number of tiles, how many persistent CTAs work through them, and the tiles. It has room for the
// most tiles that sequences of these extents can have, whatever their lengths are.
#pragma once

#include <cstdint>

#include "cute_kernels/common/integers.h"
#include "cute_kernels/common/kv_source.h"
#include "cute_kernels/common/mask.h"
#include "cute_kernels/common/sequence.h"

namespace pyflash {

// Rows of a sequence from m_block * n_queries on.
struct alignas(8) ListedTile {
  int sequence;
  int m_block;
};

// The kernel of the sequences of few rows, which runs beside that of the listed tiles: each gets multiprocessors by its work.
struct Beside {
  int const* list = nullptr;  // of equal shares: common/shares.h; nullptr: there is no such kernel
  int cost = 0;               // of one of its units
  int cost_of_block = 0;      // of a listed tile
  int heads = 0;              // of a listed tile
  int n_ctas = 0;             // that the listed tiles had alone
};

// What a list is made of.
struct TileListing {
  static constexpr int64_t kMostTiles = int64_t(1) << 28;  // so that sums of two numbers are ints

  Sequences q;
  Sequences k;
  Pages pages;  // of K, if there are any
  Mask mask;
  int batch;
  int n_queries;  // of a tile
  int B_c;        // keys of a block

  // Sequences of so many rows or more are listed.
  int least_rows = 0;

  Beside beside = {};

  // An upper bound of the tiles, by extents alone.
  PYFLASH_HOST_DEVICE constexpr int64_t most_tiles() const {
    int64_t const of_longest = int64_t(batch) * count_tiles(q.longest);
    int64_t const of_all = (int64_t(q.total) + int64_t(batch) * (n_queries - 1)) / n_queries;
    return q.is_packed() && of_all < of_longest ? of_all : of_longest;
  }
  // The ints of a list, a multiple of 16 bytes.
  PYFLASH_HOST_DEVICE constexpr int64_t size() const { return ceil_div(most_tiles() + 1, 2) * 4; }

#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
  template <class Loader>
  PYFLASH_HOST_DEVICE constexpr int keys_of(int sequence, Loader const& load) const {
    return (pages.table != nullptr ? pages.rows_of(sequence, k.longest, load)
                                   : k.rows_of(sequence, load))
        .length;
  }

  // The tiles of a sequence. Rows beyond the longest length do not count, as in kernels that have no list.
  PYFLASH_HOST_DEVICE constexpr int count_tiles(int length_q) const {
    if (length_q < least_rows) {
      return 0;
    }
    return smaller(int(ceil_div(unsigned(length_q), unsigned(n_queries))),
                   q.most_blocks(n_queries));
  }
  // The blocks of keys that some rows of a tile attend.
  PYFLASH_HOST_DEVICE constexpr int count_blocks(int m_block, int length_q, int length_k) const {
    int const first = m_block * n_queries;
    return mask.keys_from(aligned_column(first, length_q, length_k), length_k)
        .of_some(smaller(n_queries, length_q - first))
        .blocks_touched(B_c)
        .size();
  }
};

// What the threads that make a list share.
struct TileListStorage {
  static constexpr int kChunk = 1024;  // sequences at a time
  static constexpr int kBins = 1024;   // of tiles with as many blocks of keys, the most first

  int lengths_q[kChunk];
  int lengths_k[kChunk];
  int ends[kChunk];  // of the sequences' tiles in the chunk's
  int bins[kBins];   // tiles, then the place of each bin's next tile
  int spare[kChunk];
};

// One thread makes it alone.
struct OneThread {
  constexpr int index() const { return 0; }
  constexpr int count() const { return 1; }
  void sync() const {}
  // Adds to a number in shared memory; returns what was there.
  int add(int& number, int n) const {
    int const before = number;
    number += n;
    return before;
  }
};

#if defined(__CUDACC__)
#define PYFLASH_ANY_SIDE _Pragma("nv_exec_check_disable")
#else
#define PYFLASH_ANY_SIDE
#endif

// The sums of the first n numbers up to each, none above `most`: in `numbers` or in `spare`. Every thread calls it, and sees them
// after it.
// NOTE: a step for each bit of n; one CTA makes the list while the forward pass waits for it.
PYFLASH_ANY_SIDE
template <class Threads>
PYFLASH_HOST_DEVICE int const* sums_of_first(int* numbers, int* spare, int n, int most,
                                             Threads const& threads) {
  int* from = numbers;
  int* to = spare;
  for (int distance = 1; distance < n; distance *= 2) {
    for (int i = threads.index(); i < n; i += threads.count()) {
      to[i] = i < distance ? from[i] : smaller(from[i] + from[i - distance], most);
    }
    threads.sync();  // the step's sums are visible, and what they were made of is free
    int* const made = to;
    to = from;
    from = made;
  }
  return from;
}

// Makes each number the sum of those up to it, none above `most`. Every thread calls it; the sums are visible after.
PYFLASH_ANY_SIDE
template <int kSize, class Threads>
PYFLASH_HOST_DEVICE void add_up(int (&numbers)[kSize], int (&spare)[kSize], int most,
                                Threads const& threads) {
  static_assert(kSize == 1024, "an even number of steps ends in `numbers`");
  sums_of_first(numbers, spare, kSize, most, threads);
}

// Calls visit(sequence, m_block, blocks of keys) for every tile once, by any of the threads.
PYFLASH_ANY_SIDE
template <class Threads, class Load, class Visit>
PYFLASH_HOST_DEVICE void for_each_tile(TileListing const& listing, TileListStorage& shared,
                                       Threads const& threads, Load const& load,
                                       Visit const& visit) {
  constexpr int kChunk = TileListStorage::kChunk;
  int left = int(listing.most_tiles());  // NOTE: so that wrong lengths end, too
  for (int first = 0; first < listing.batch; first += kChunk) {
    for (int i = threads.index(); i < kChunk; i += threads.count()) {
      bool const exists = first + i < listing.batch;
      shared.lengths_q[i] = exists ? listing.q.rows_of(first + i, load).length : 0;
      shared.lengths_k[i] = exists ? listing.keys_of(first + i, load) : 0;
      shared.ends[i] = smaller(listing.count_tiles(shared.lengths_q[i]), left);
    }
    threads.sync();  // the lengths are visible
    add_up(shared.ends, shared.spare, left, threads);
    int const n_tiles = shared.ends[kChunk - 1];
    left -= n_tiles;
    for (int tile = threads.index(); tile < n_tiles; tile += threads.count()) {
      int i = 0;  // the sequences that end at or before the tile
      for (int step = kChunk / 2; step > 0; step /= 2) {
        i += shared.ends[i + step - 1] <= tile ? step : 0;
      }
      int const m_block = tile - (i > 0 ? shared.ends[i - 1] : 0);
      visit(first + i, m_block,
            listing.count_blocks(m_block, shared.lengths_q[i], shared.lengths_k[i]));
    }
    threads.sync();  // the lengths are free
  }
}

// The CTAs that work through tiles of so many blocks in each head, beside another kernel or alone. At least one, so that tiles
// are never left.
PYFLASH_HOST_DEVICE constexpr int ctas_beside(Beside const& beside, int n_blocks, int n_units) {
  double const own = double(n_blocks) * beside.heads * beside.cost_of_block;
  double const all = own + double(larger(n_units, 0)) * beside.cost;
  return all > 0 ? larger(int(beside.n_ctas * (own / all) + 0.5), 1) : 1;
}

// By a counting sort. Every thread calls it. Which of the tiles with as many blocks comes first depends on the threads.
PYFLASH_ANY_SIDE
template <class Threads, class Load>
PYFLASH_HOST_DEVICE void write_tile_list(TileListing const& listing, int* list,
                                         TileListStorage& shared, Threads const& threads,
                                         Load const& load) {
  constexpr int kBins = TileListStorage::kBins;
  int shift = 0;  // blocks of a bin, as a power of two
  while (listing.k.most_blocks(listing.B_c) >> shift >= kBins) {
    ++shift;
  }
  auto const bin_of = [&](int n_blocks) {
    return kBins - 1 - smaller(n_blocks >> shift, kBins - 1);
  };
  for (int i = threads.index(); i < kBins; i += threads.count()) {
    shared.bins[i] = 0;
  }
  threads.sync();  // the bins are empty
  for_each_tile(listing, shared, threads, load,
                [&](int, int, int n_blocks) { threads.add(shared.bins[bin_of(n_blocks)], 1); });
  int n_ctas = kNoWindow;
  if (listing.beside.list != nullptr) {
    static_assert(kBins == TileListStorage::kChunk, "lengths make room for the bins' blocks");
    constexpr int kMostBlocks = 1 << 29;
    for (int i = threads.index(); i < kBins; i += threads.count()) {
      int64_t const n_blocks = int64_t(shared.bins[i]) * ((kBins - 1 - i) << shift);
      shared.lengths_k[i] = n_blocks < kMostBlocks ? int(n_blocks) : kMostBlocks;
    }
    threads.sync();  // the blocks are visible
    add_up(shared.lengths_k, shared.spare, kMostBlocks, threads);
    n_ctas = ctas_beside(listing.beside, shared.lengths_k[kBins - 1], load(listing.beside.list));
  }
  add_up(shared.bins, shared.spare, int(listing.most_tiles()), threads);
  if (threads.index() == 0) {
    list[0] = shared.bins[kBins - 1];
    list[1] = n_ctas;
  }
  // A bin's tiles take its places from the last one down.
  ListedTile* const tiles = reinterpret_cast<ListedTile*>(list) + 1;
  for_each_tile(listing, shared, threads, load, [&](int sequence, int m_block, int n_blocks) {
    int const place = threads.add(shared.bins[bin_of(n_blocks)], -1) - 1;
    tiles[place] = {sequence, m_block};
  });
}

#undef PYFLASH_ANY_SIDE

}  // namespace pyflash
