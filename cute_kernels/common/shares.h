// Equal shares of the blocks of keys of sequences that have different lengths, made where the lengths are, on the device.
//
// The tiles of all sequences and heads lie one behind the other, each of as many units as it has blocks of keys, and one more
// for what a tile costs by itself. Share i is the units from i * size on; a CTA works through it, in whichever tiles that is. What a
// share has of a tile that is not all of its blocks is a part, and the tile's parts are merged in the order of the shares.
// A tile has all rows of a sequence in one head.
//
// Several heads go abreast: they lie in one line, and a share is one for a CTA of each. These read the same keys at a time, whose rows
// of neighbouring heads are one piece of memory.
//
// The list is memory of ints, of a size that follows from extents: the number of all units and the size of a share, two ints that
// mean nothing, the shares, and where each sequence starts, in units.
#pragma once

#include <cstdint>

#include "cute_kernels/common/integers.h"
#include "cute_kernels/common/kv_source.h"
#include "cute_kernels/common/mask.h"
#include "cute_kernels/common/sequence.h"
#include "cute_kernels/common/sums.h"

namespace pyflash {

// Where a share begins, and its size.
struct alignas(16) Share {
  int sequence;
  int head;        // the first of those abreast
  int first_unit;  // of the tile
  int n_units;     // 0: there is nothing to do
};

// What a list of shares is made of.
struct ShareListing {
  static constexpr int kTileUnits = 1;                     // before those of a tile's blocks
  static constexpr int kLeastUnits = 4;                    // of a share, if there are so many
  static constexpr int kHeader = 4;                        // ints
  static constexpr int64_t kMostUnits = int64_t(1) << 29;  // so that sums of two numbers are ints

  Sequences q;
  Sequences k;
  Pages pages;  // of K, if there are any
  Mask mask;
  int batch;
  int heads;      // of a sequence's tiles
  int abreast;    // of them
  int n_queries;  // of a tile
  int B_c;        // keys of a block
  int n_shares;   // that are listed

  // The tiles of a sequence that lie one behind the other.
  PYFLASH_HOST_DEVICE constexpr int tiles() const { return heads / abreast; }

  // Whether the numbers of units are ints, whatever the lengths are.
  PYFLASH_HOST_DEVICE constexpr bool is_countable() const {
    int64_t const of_tile = k.most_blocks(B_c) + kTileUnits;
    return int64_t(batch) * tiles() <= kMostUnits / of_tile && n_shares <= kMostUnits / kLeastUnits;
  }
  // Where the sequences' starts are in the list.
  PYFLASH_HOST_DEVICE constexpr int64_t first_start() const {
    return kHeader + int64_t(n_shares) * (sizeof(Share) / sizeof(int));
  }
  // The ints of a list, a multiple of 16 bytes.
  PYFLASH_HOST_DEVICE constexpr int64_t size() const {
    return first_start() + ceil_div(int64_t(batch) + 1, 4) * 4;
  }

  // The units of a tile of a sequence. One of more rows than a tile is another kernel's.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
  template <class Loader>
  PYFLASH_HOST_DEVICE constexpr int units_of(int sequence, Loader const& load) const {
    int const length_q = q.rows_of(sequence, load).length;
    Rows const keys = pages.table != nullptr ? pages.rows_of(sequence, k.longest, load)
                                             : k.rows_of(sequence, load);
    if (length_q == 0 || length_q > n_queries) {
      return 0;
    }
    int const n_blocks = mask.keys_from(aligned_column(0, length_q, keys.length), keys.length)
                             .of_some(length_q)
                             .blocks_touched(B_c)
                             .size();
    return n_blocks + kTileUnits;
  }
};

// What the threads that make a list share.
struct ShareListStorage {
  static constexpr int kChunk = 1024;  // sequences at a time

  int ends[kChunk];  // of the sequences of the chunk, in units
  int spare[kChunk];
};

// The parts of a tile, of CTAs `first`, first + abreast and so on.
struct Parts {
  int sequence = 0;
  int head = 0;
  int first = 0;
  int abreast = 1;
  int n = 0;

  PYFLASH_HOST_DEVICE constexpr int count() const { return n; }
  // Where a part is in the memory of parts: a CTA has one that begins within a tile at most, and one that ends within one.
  PYFLASH_HOST_DEVICE constexpr int place(int part) const {
    return place_of(first + part * abreast, /*begins_tile=*/part == 0);
  }
  static PYFLASH_HOST_DEVICE constexpr int place_of(int cta, bool begins_tile) {
    return 2 * cta + (begins_tile ? 1 : 0);
  }
};

// The parts of the tile that is cut first where the share of a CTA begins; none, where none is. So each tile that is cut belongs to
// one CTA.
PYFLASH_HOST_DEVICE constexpr Parts parts_of(ShareListing const& listing, int const* list,
                                             int cta) {
  int const share = cta / listing.abreast, index = cta % listing.abreast;
  Share const begin = reinterpret_cast<Share const*>(list + ShareListing::kHeader)[share];
  int const size = list[1];  // NOTE: both loads at once
  if (begin.n_units == 0 || begin.first_unit <= ShareListing::kTileUnits) {
    return {};
  }
  int const* const starts = list + listing.first_start() + begin.sequence;
  int const n_units = (starts[1] - starts[0]) / listing.tiles();
  int const start = starts[0] + begin.head / listing.abreast * n_units;
  int const first = (start + ShareListing::kTileUnits) / size;
  if (first + 1 != share) {
    return {};
  }
  int const last = smaller((start + n_units - 1) / size, listing.n_shares - 1);
  return {.sequence = begin.sequence,
          .head = begin.head + index,
          .first = first * listing.abreast + index,
          .abreast = listing.abreast,
          .n = last - first + 1};
}

// Every thread calls it.
PYFLASH_ANY_SIDE
template <class Threads, class Load>
PYFLASH_HOST_DEVICE void write_shares(ShareListing const& listing, int* list,
                                      ShareListStorage& shared, Threads const& threads,
                                      Load const& load) {
  constexpr int kChunk = ShareListStorage::kChunk;
  int const batch = listing.batch;
  int* const starts = list + listing.first_start();
  bool const is_one_chunk = batch <= kChunk;
  int const* ends = shared.ends;  // of the chunk's sequences
  int total = 0;
  for (int first = 0; first < batch; first += kChunk) {
    int const n = smaller(batch - first, kChunk);
    for (int i = threads.index(); i < n; i += threads.count()) {
      shared.ends[i] = listing.units_of(first + i, load) * listing.tiles();
    }
    threads.sync();  // the units are visible
    ends = sums_of_first(shared.ends, shared.spare, n, ShareListing::kMostUnits, threads);
    for (int i = threads.index(); i < n; i += threads.count()) {
      starts[first + i + 1] = total + ends[i];
    }
    total += ends[n - 1];
    if (!is_one_chunk) {
      threads.sync();  // the ends are free, and the starts visible
    }
  }
  // NOTE: of one chunk by what is shared, which takes no way through memory.
  auto const start_of = [&](int sequence) {
    return sequence == 0 ? 0 : is_one_chunk ? ends[sequence - 1] : starts[sequence];
  };
  int const size = larger(ceil_div(total, listing.n_shares), ShareListing::kLeastUnits);
  if (threads.index() == 0) {
    list[0] = total;
    list[1] = size;
    list[2] = list[3] = 0;
    starts[0] = 0;
  }
  Share* const shares = reinterpret_cast<Share*>(list + ShareListing::kHeader);
  for (int i = threads.index(); i < listing.n_shares; i += threads.count()) {
    int const begin = i * size;
    Share share{};
    if (begin < total) {
      // The last sequence that starts at or before the share.
      int sequence = 0;
      for (int end = batch; end - sequence > 1;) {
        int const middle = (sequence + end) / 2;
        int const start = start_of(middle);
        (start <= begin ? sequence : end) = middle;
      }
      int const start = start_of(sequence);
      int const n_units = (start_of(sequence + 1) - start) / listing.tiles();
      share = {.sequence = sequence,
               .head = (begin - start) / n_units * listing.abreast,
               .first_unit = (begin - start) % n_units,
               .n_units = smaller(size, total - begin)};
    }
    shares[i] = share;
  }
}

}  // namespace pyflash
