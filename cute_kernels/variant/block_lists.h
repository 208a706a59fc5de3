// Which blocks of keys tiles of queries attend under a variant's mask, as lists in global memory: a list a tile, made before
// the kernel runs. The kernel's loads and its computation walk the same list.
#pragma once

#include <cstdint>

#include "cute_kernels/common/integers.h"
#include "cute_kernels/common/kv_source.h"
#include "cute_kernels/common/mask.h"
#include "cute_kernels/common/sequence.h"
#include "cute_kernels/variant/bounds.h"

namespace pyflash::variant {

// The number of a block, and whether the mask cuts it.
struct ListedBlock {
  int number;
  bool is_cut;

  static PYFLASH_HOST_DEVICE constexpr ListedBlock of(int entry) {
    return {entry >> 1, (entry & 1) != 0};
  }
  PYFLASH_HOST_DEVICE constexpr int entry() const { return number * 2 + (is_cut ? 1 : 0); }
};

// What a list is of; batch and head are 0 where one list is for all of them.
struct TileOfLists {
  int batch;
  int head;
  int tile;
};

// (batches, heads, tiles, 1 + blocks): a list has its length, then its blocks, ascending. Where the mask does not depend on
// the batch or the head, there is one for all of them.
struct BlockLists {
  int* data;
  int batches;  // 1: for all
  int heads;    // of tiles; 1: for all
  int tiles;
  int blocks;

  PYFLASH_HOST_DEVICE constexpr int64_t n_lists() const { return int64_t(batches) * heads * tiles; }
  PYFLASH_HOST_DEVICE constexpr int64_t size() const { return n_lists() * (1 + blocks); }
  // The tile of list number `index`.
  PYFLASH_HOST_DEVICE constexpr TileOfLists tile_of(int64_t index) const {
    return {int(index / tiles / heads), int(index / tiles % heads), int(index % tiles)};
  }
  PYFLASH_HOST_DEVICE constexpr int64_t index_of(int batch, int head, int tile) const {
    int64_t const of_batch = batches == 1 ? 0 : batch;
    int64_t const of_head = heads == 1 ? 0 : head;
    return (of_batch * heads + of_head) * tiles + tile;
  }
  PYFLASH_HOST_DEVICE constexpr int* list(int batch, int head, int tile) const {
    return data + index_of(batch, head, tile) * (1 + blocks);
  }
};

// The blocks of a tile, or of the rows of one of its warpgroups, by their places. The mask cuts none in [whole_begin, whole_end).
struct alignas(16) BlockSpan {
  int begin;
  int end;
  int whole_begin;
  int whole_end;
};

// Blocks of a tile that are neighbours are their own places; else the places of a list begin behind this one.
inline constexpr int kListedPlaces = 1 << 28;
static_assert(kListedPlaces > kNoWindow / 16, "a block of 16 keys or more has no such number");

// The blocks of a tile by these places, of which the mask may show less than all.
struct SpanWalk {
  int const* list;

  PYFLASH_HOST_DEVICE ListedBlock operator[](int place) const {
    return place < kListedPlaces ? ListedBlock{place, true}
                                 : ListedBlock::of(list[place - kListedPlaces]);
  }
};

// (n_lists, 1 + warpgroups): the span of a tile, then those of its warpgroups, which hold where the tile's blocks are neighbours.
struct BlockSpans {
  BlockSpan* data = nullptr;
  int warpgroups = 0;  // 0: there are no spans

  PYFLASH_HOST_DEVICE constexpr int parts() const { return 1 + warpgroups; }
  PYFLASH_HOST_DEVICE constexpr int64_t size(BlockLists const& lists) const {
    return warpgroups > 0 ? lists.n_lists() * parts() : 0;
  }
  PYFLASH_HOST_DEVICE constexpr BlockSpan* of_list(int64_t list) const {
    return data + list * parts();
  }
};

// A problem and the tiles that a config cuts it into, as lists depend on them.
struct ListedProblem {
  Sequences q;
  Sequences k;
  Mask mask;
  int batch;
  int heads;      // of q
  int n_queries;  // of a tile
  int B_c;
  int group;               // heads of q that are rows of a tile, neighbours
  int warpgroups = 0;      // of a tile, where kernels take a mask as bits (mask_bits.h), or spans
  bool is_judged = false;  // places of lists hold what is shown of their blocks
  // (batch), keys of the sequences, where these lie in pages, of which k says what they have room for; else nullptr.
  int const* k_lengths = nullptr;

  // Whether sequences may differ in length.
  PYFLASH_HOST_DEVICE constexpr bool has_lengths() const {
    return q.is_packed() || k.is_packed() || k_lengths != nullptr;
  }
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
  template <class Loader>
  PYFLASH_HOST_DEVICE constexpr Rows k_rows(int sequence, Loader const& load) const {
    if (k_lengths == nullptr) {
      return k.rows_of(sequence, load);
    }
    return Pages{.lengths = k_lengths}.rows_of(sequence, k.longest, load);
  }

  template <class Variant>
  constexpr BlockLists lists() const {
    bool const per_batch = Variant::kMaskReadsBatch || has_lengths();
    return {.data = nullptr,
            .batches = per_batch ? batch : 1,
            .heads = Variant::kMaskReadsHead ? heads / group : 1,
            .tiles = q.most_blocks(n_queries),
            .blocks = k.most_blocks(B_c)};
  }
};

// The keys of a block that exist.
PYFLASH_HOST_DEVICE Bounds keys_of_block(ListedProblem const& problem, Lengths const& lengths,
                                         int block) {
  int64_t const first = int64_t(block) * problem.B_c;
  return {first, minimum(first + problem.B_c, int64_t(lengths.k_len)) - 1};
}

// What a variant's mask shows of a block of keys to queries of a tile, whose first head is `head`. rows, columns: what these queries
// and these keys decide alone, of that head.
template <class Variant>
PYFLASH_HOST_DEVICE Shown shown_of_block(typename Variant::Params const& captured,
                                         ListedProblem const& problem, Lengths const& lengths,
                                         typename Variant::TileRows const& rows,
                                         typename Variant::TileColumns const& columns, int batch,
                                         int head, Bounds queries, Bounds keys) {
  Shown all = Variant::tile(captured, lengths, rows, columns, batch, head, queries, keys);
  for (int i = 1; Variant::kMaskReadsHead && i < problem.group; ++i) {
    Shown const one = shown_of<Variant>(captured, lengths, batch, head + i, queries, keys);
    all = one == all ? all : Shown::some;
  }
  return all;
}

// One lane on the host.
struct OneLane {
  static constexpr int index() { return 0; }
  static constexpr int size() { return 1; }
  static constexpr int count(uint32_t word) { return static_cast<int>(word); }
  static constexpr int highest(uint32_t) { return 0; }
  // Calls visit(first, is_own, attended, whole) for the lanes of each warp, of which `first` is the first: the votes of these.
  template <class Visit>
  static void for_each_vote(bool attended, bool whole, Visit const& visit) {
    visit(0, true, uint32_t(attended), uint32_t(whole));
  }
};

// The blocks from the first to the last of which something is shown, and whether all of these are, and those that are whole.
struct SpanFinder {
  Interval attended{0, 0};
  Interval whole{0, 0};
  int n_attended = 0;
  int n_whole = 0;

  // Takes the votes on blocks that are neighbours, from `first` on.
  template <class Lanes>
  PYFLASH_HOST_DEVICE void add(Lanes const& lanes, int first, uint32_t are_attended,
                               uint32_t are_whole) {
    add_word(lanes, attended, n_attended, first, are_attended);
    add_word(lanes, whole, n_whole, first, are_whole);
  }

  PYFLASH_HOST_DEVICE bool are_neighbours() const {
    return n_attended == attended.size() && n_whole == whole.size();
  }
  PYFLASH_HOST_DEVICE BlockSpan span() const {
    bool const has_whole = n_whole == whole.size();
    return {attended.begin, attended.end, has_whole ? whole.begin : 0, has_whole ? whole.end : 0};
  }

 private:
  template <class Lanes>
  static PYFLASH_HOST_DEVICE void add_word(Lanes const& lanes, Interval& found, int& n, int first,
                                           uint32_t word) {
    if (word != 0) {
      found.begin = n == 0 ? first + lanes.count((word & (0u - word)) - 1) : found.begin;
      found.end = first + lanes.highest(word) + 1;
      n += lanes.count(word);
    }
  }
};

// Adds the blocks of all lanes, which are neighbours from `begin` on, of which something is shown to a list, and to what was found
// before; list: nullptr, where nothing is written. shown: of the block of this lane.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class Lanes>
PYFLASH_HOST_DEVICE void add_shown(int* list, SpanFinder& found, Lanes const& lanes, int begin,
                                   Shown shown) {
  bool const is_attended = shown != Shown::none;
  auto take = [&](int first, bool is_own, uint32_t attended, uint32_t whole) {
    if (list != nullptr && is_own && is_attended) {
      uint32_t const before = attended & ((1u << (lanes.index() - first)) - 1);
      list[1 + found.n_attended + lanes.count(before)] =
          ListedBlock{begin + lanes.index(), shown == Shown::some}.entry();
    }
    found.add(lanes, begin + first, attended, whole);
  };
  lanes.for_each_vote(is_attended, shown == Shown::all, take);
}

// Writes a list of those of `blocks` of which something is shown, by all lanes. shown_of: what is shown of a block.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class Lanes, class ShownOf>
PYFLASH_HOST_DEVICE void write_shown(int* list, Interval blocks, Lanes const& lanes,
                                     ShownOf const& shown_of) {
  SpanFinder found;
  for (int begin = blocks.begin; begin < blocks.end; begin += lanes.size()) {
    int const block = begin + lanes.index();
    add_shown(list, found, lanes, begin, block < blocks.end ? shown_of(block) : Shown::none);
  }
  if (lanes.index() == 0) {
    list[0] = found.n_attended;
  }
}

// The blocks that windows leave to the tile of queries [first, end).
PYFLASH_HOST_DEVICE Interval listed_blocks(ListedProblem const& problem, BlockLists const& lists,
                                           Rows const& q_rows, Rows const& k_rows, int first,
                                           int end) {
  if (first >= end) {
    return {0, 0};
  }
  int const aligned = aligned_column(first, q_rows.length, k_rows.length);
  Interval blocks = problem.mask.keys_from(aligned, k_rows.length)
                        .of_some(end - first)
                        .from_0()
                        .blocks_touched(problem.B_c);
  blocks.end = smaller(blocks.end, lists.blocks);  // whatever cu_seqlens hold
  return blocks;
}

// The queries of a tile or of one of its warpgroups, their blocks that windows leave, and what is found of these.
template <class Variant>
struct PartOfTile {
  Interval queries;
  Interval blocks;
  typename Variant::TileRows rows;
  SpanFinder found;
};
inline constexpr int kMostWarpgroups = 4;  // of a tile: consumers of an SM90 config

// Writes list number `number`, and the spans of its tile and of the warpgroups, by all lanes: what keys decide alone is told once for
// all of these. load: reads an int at an address.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class Variant, class Lanes, class Loader>
PYFLASH_HOST_DEVICE void write_list(typename Variant::Params const& captured,
                                    ListedProblem const& problem, BlockLists const& lists,
                                    BlockSpans const& spans, int64_t number, Lanes const& lanes,
                                    Loader const& load) {
  TileOfLists const at = lists.tile_of(number);
  Rows const q_rows = problem.q.rows_of(at.batch, load);
  Rows const k_rows = problem.k_rows(at.batch, load);
  Lengths const lengths{q_rows.length, k_rows.length, 0, 0};
  int const head = at.head * problem.group;
  int* const list = lists.list(at.batch, at.head, at.tile);
  PartOfTile<Variant> parts[1 + kMostWarpgroups];
  for (int i = 0; i < spans.parts(); ++i) {
    PartOfTile<Variant>& part = parts[i];
    int first = at.tile * problem.n_queries;
    int n_queries = problem.n_queries;
    if (i > 0) {
      n_queries /= spans.warpgroups;
      first += (i - 1) * n_queries;
    }
    int const end = smaller(first + n_queries, q_rows.length);
    part.queries = {first, end};
    part.blocks = listed_blocks(problem, lists, q_rows, k_rows, first, end);
    if (part.blocks.size() > 0 && !problem.is_judged) {
      part.rows = Variant::tile_rows(captured, lengths, at.batch, head, {first, end - 1});
    }
  }
  Interval const blocks = parts[0].blocks;
  for (int begin = blocks.begin; begin < blocks.end; begin += lanes.size()) {
    int const block = begin + lanes.index();
    Bounds const keys = keys_of_block(problem, lengths, block);
    typename Variant::TileColumns columns{};
    if (block < blocks.end && !problem.is_judged) {
      columns = Variant::tile_columns(captured, lengths, at.batch, head, keys);
    }
    for (int i = 0; i < spans.parts(); ++i) {
      PartOfTile<Variant>& part = parts[i];
      Shown shown = Shown::none;
      if (part.blocks.begin <= block && block < part.blocks.end) {
        // NOTE: what is written of a list is of blocks before those that are read.
        shown = problem.is_judged ? static_cast<Shown>(list[1 + block])
                                  : shown_of_block<Variant>(
                                        captured, problem, lengths, part.rows, columns, at.batch,
                                        head, {part.queries.begin, part.queries.end - 1}, keys);
      }
      SpanFinder found = part.found;  // NOTE: in registers while votes are added
      add_shown(i == 0 ? list : nullptr, found, lanes, begin, shown);
      part.found = found;
    }
  }
  if (lanes.index() == 0) {
    list[0] = parts[0].found.n_attended;
    for (int i = 0; i < spans.parts() && spans.warpgroups > 0; ++i) {
      SpanFinder const& found = parts[i].found;
      BlockSpan span = found.span();
      if (i == 0 && !found.are_neighbours()) {
        span = {kListedPlaces + 1, kListedPlaces + 1 + found.n_attended, 0, 0};
      }
      spans.of_list(number)[i] = span;
    }
  }
}

}  // namespace pyflash::variant
