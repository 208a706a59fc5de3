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
#include "cute_kernels/common/shares.h"
#include "cute_kernels/common/sums.h"

namespace pyflash {

// Rows of a sequence from m_block * n_queries on.
struct alignas(8) ListedTile {
  int sequence;
  int m_block;
};

// The kernel of the sequences of few rows, which runs beside that of the listed tiles: each gets multiprocessors by its work.
struct Beside {
  int* list = nullptr;    // of its shares, made beside that of the tiles
  int cost = 0;           // of one of its units
  int cost_of_block = 0;  // of a listed tile
  int heads = 0;          // of a listed tile
  int n_ctas = 0;         // that the listed tiles had alone
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
  ShareListing shares = {};  // that beside.list has

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
  int spare[kChunk];
  int bins[kBins];  // tiles
  int spare_bins[kBins];
  int n_blocks;  // of all tiles, in one head
  int n_units;   // that beside.list has
};

// The tiles of the sequences of a chunk.
struct ChunkOfTiles {
  int n_sequences;
  int n_tiles;
  int const* ends;  // of the sequences' tiles
};

// Reads the lengths of the sequences from `first` on, of whose tiles `most` count at most. Every thread calls it.
PYFLASH_ANY_SIDE
template <class Threads, class Load>
PYFLASH_HOST_DEVICE ChunkOfTiles read_chunk(TileListing const& listing, TileListStorage& shared,
                                            int first, int most, Threads const& threads,
                                            Load const& load) {
  int const n = smaller(listing.batch - first, TileListStorage::kChunk);
  for (int i = threads.index(); i < n; i += threads.count()) {
    shared.lengths_q[i] = listing.q.rows_of(first + i, load).length;
    shared.lengths_k[i] = listing.keys_of(first + i, load);
    shared.ends[i] = smaller(listing.count_tiles(shared.lengths_q[i]), most);
  }
  threads.sync();  // the lengths are visible
  int const* const ends = sums_of_first(shared.ends, shared.spare, n, most, threads);
  return {.n_sequences = n, .n_tiles = ends[n - 1], .ends = ends};
}

// Calls visit(sequence, m_block, blocks of keys) for every tile of a chunk once, by any of the threads.
PYFLASH_ANY_SIDE
template <class Threads, class Visit>
PYFLASH_HOST_DEVICE void for_each_tile(TileListing const& listing, TileListStorage const& shared,
                                       int first, ChunkOfTiles const& chunk, Threads const& threads,
                                       Visit const& visit) {
  for (int tile = threads.index(); tile < chunk.n_tiles; tile += threads.count()) {
    int i = 0;  // the sequences that end at or before the tile
    for (int end = chunk.n_sequences; i < end;) {
      int const middle = (i + end) / 2;
      bool const is_before = chunk.ends[middle] <= tile;
      i = is_before ? middle + 1 : i;
      end = is_before ? end : middle;
    }
    int const m_block = tile - (i > 0 ? chunk.ends[i - 1] : 0);
    visit(first + i, m_block,
          listing.count_blocks(m_block, shared.lengths_q[i], shared.lengths_k[i]));
  }
}

// The CTAs that work through the listed tiles beside another kernel, so many that both take as long, in whole rounds: CTAs
// without a tile in the last one would wait. A tile costs as much as a block more. At least one, so that tiles are never left.
PYFLASH_HOST_DEVICE constexpr int ctas_beside(Beside const& beside, int n_tiles, int n_blocks,
                                              int n_units) {
  if (n_tiles == 0) {
    return 1;
  }
  double const own = (double(n_blocks) + n_tiles) * beside.heads * beside.cost_of_block;
  double const all = own + double(n_units) * beside.cost;
  int64_t const n_all_tiles = int64_t(n_tiles) * beside.heads;
  int64_t const least_rounds = ceil_div(n_all_tiles, int64_t(beside.n_ctas));
  int64_t const n_rounds = int64_t(double(n_all_tiles) / beside.n_ctas * (all / own) + 0.5);
  return int(ceil_div(n_all_tiles, n_rounds < least_rounds ? least_rounds : n_rounds));
}

// By a counting sort. Every thread calls it. Which of the tiles with as many blocks comes first depends on the threads.
PYFLASH_ANY_SIDE
template <class Threads, class Load>
PYFLASH_HOST_DEVICE void write_tile_list(TileListing const& listing, int* list,
                                         TileListStorage& shared, Threads const& threads,
                                         Load const& load) {
  constexpr int kChunk = TileListStorage::kChunk;
  constexpr int kBins = TileListStorage::kBins;
  bool const runs_beside = listing.beside.list != nullptr;
  int shift = 0;  // blocks of a bin, as a power of two
  while (listing.k.most_blocks(listing.B_c) >> shift >= kBins) {
    ++shift;
  }
  int const n_bins = (listing.k.most_blocks(listing.B_c) >> shift) + 1;
  auto const bin_of = [&](int n_blocks) {
    return n_bins - 1 - smaller(n_blocks >> shift, n_bins - 1);
  };
  for (int i = threads.index(); i < n_bins; i += threads.count()) {
    shared.bins[i] = 0;
  }
  if (threads.index() == 0) {
    shared.n_blocks = shared.n_units = 0;
  }
  threads.sync();  // the bins are empty
  // Calls visit for every tile of every sequence. NOTE: one chunk is read once.
  ChunkOfTiles chunk{};
  auto const for_each = [&](auto const& visit) {
    int left = int(listing.most_tiles());  // NOTE: so that wrong lengths end, too
    for (int first = 0; first < listing.batch; first += kChunk) {
      if (chunk.ends == nullptr || listing.batch > kChunk) {
        chunk = read_chunk(listing, shared, first, left, threads, load);
      }
      for_each_tile(listing, shared, first, chunk, threads, visit);
      left -= chunk.n_tiles;
      threads.sync();  // what was visited is visible, and the lengths are free
    }
  };
  if (runs_beside) {
    for (int i = threads.index(); i < listing.batch; i += threads.count()) {
      threads.add(shared.n_units, listing.shares.units_of(i, load) * listing.shares.heads);
    }
  }
  for_each([&](int, int, int n_blocks) { threads.add(shared.bins[bin_of(n_blocks)], 1); });
  if (runs_beside) {
    constexpr int kMostOfBin = 1 << 20;  // so that the sum is an int
    for (int i = threads.index(); i < n_bins; i += threads.count()) {
      int64_t const n_blocks = int64_t(shared.bins[i]) * ((n_bins - 1 - i) << shift);
      if (n_blocks > 0) {
        threads.add(shared.n_blocks, n_blocks < kMostOfBin ? int(n_blocks) : kMostOfBin);
      }
    }
  }
  // Where the tiles of each bin end.
  int* const places =
      sums_of_first(shared.bins, shared.spare_bins, n_bins, int(listing.most_tiles()), threads);
  int const n_tiles = places[n_bins - 1];
  threads.sync();  // the number is read
  if (threads.index() == 0) {
    list[0] = n_tiles;
    list[1] = runs_beside ? ctas_beside(listing.beside, n_tiles, shared.n_blocks, shared.n_units)
                          : kNoWindow;
  }
  // A bin's tiles take its places from the last one down.
  ListedTile* const tiles = reinterpret_cast<ListedTile*>(list) + 1;
  for_each([&](int sequence, int m_block, int n_blocks) {
    int const place = threads.add(places[bin_of(n_blocks)], -1) - 1;
    tiles[place] = {sequence, m_block};
  });
}

}  // namespace pyflash
