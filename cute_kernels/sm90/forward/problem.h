// The tiles of a problem: their order, their coordinates, and the blocks of keys that each of them attends.
#pragma once

#include <type_traits>

#include "cute_kernels/common/tile_list.h"
#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/params.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/forward/cta_share.h"
#include "cute_kernels/sm90/forward/kernel_params.h"
#include "cute_kernels/variant/mask_bits.h"
#include "cute_kernels/variant/tile_order.h"

namespace pyflash::sm90 {

using namespace cute;

// A tile of Q and the blocks of keys that it attends.
struct Tile {
  bool exists;
  int first_query;  // in the sequence
  int split;        // where keys are shared, the place of the part, or kWhole
  int head;
  int batch;
  Rows q_rows;
  Rows k_rows;
  Interval blocks;  // of keys, by their places; the last is the first that is worked on

  static constexpr int kWhole = -1;

  // The key that query 0 of the sequence is aligned with.
  CUTE_DEVICE int diagonal() const { return aligned_column(0, q_rows.length, k_rows.length); }
};

// The keys that queries of a tile's sequence attend; row 0 is the one that is aligned with key `aligned`.
template <ForwardFeatures kFeatures>
CUTE_DEVICE auto keys_from(KernelParams const& params, Tile const& tile, int aligned) {
  return params.problem.mask().keys_from<kFeatures.left_window, kFeatures.right_window>(
      aligned, tile.k_rows.length);
}

// The first key that some query of a tile attends; what lies before it, nobody loads. May be below 0.
template <ForwardFeatures kFeatures>
CUTE_DEVICE int first_key(KernelParams const& params, Tile const& tile) {
  return keys_from<kFeatures>(params, tile, tile.first_query + tile.diagonal()).begin(0);
}

// The tiles of one CTA, in order. Persistent CTAs take one in each round, unless clusters of them share tiles; every other round
// goes backwards, so that where tiles are sorted by their length nobody gets the longest each time.
template <class Traits, ForwardFeatures kFeatures, class Variant = NoVariant>
struct TileSchedule {
  ParamsWith<Variant> const& params;
  int round = 0;

  CUTE_DEVICE TileSchedule(ParamsWith<Variant> const& params, CtaShare const&) : params(params) {}

  // Whether a tile has all splits at fixed keys, which its CTA folds.
  static constexpr bool kMayFold = kFeatures.fixed_splits && Traits::kFoldsSplits;
  CUTE_DEVICE static bool folds(KernelParams const& params) {
    return kMayFold && params.problem.num_splits == 1;
  }
  // And whether it goes on from this block to another split.
  CUTE_DEVICE static bool ends_split(KernelParams const& params, int n_block) {
    constexpr int kBlocks = blocks_of_fixed_split(Traits::kBlockN);
    return folds(params) && n_block % kBlocks == 0 && n_block < kMaxSplits * kBlocks;
  }

  CUTE_DEVICE Tile next() {
    while (round == 0 || has_rounds()) {
      int const index = index_of_round();
      if (index >= n_tiles()) {
        break;
      }
      ++round;
      Tile const tile = at(index);
      if (tile.first_query < tile.q_rows.length) {
        return tile;
      }
    }
    return Tile{};
  }

 private:
  CUTE_DEVICE bool in_cluster() const {
    return Traits::kMaxCluster > 1 && params.problem.cluster > 1;
  }
  CUTE_DEVICE bool is_listed() const {
    return (kFeatures.listed_tiles || variant::kSortsTiles<Variant>) &&
           params.order.list != nullptr;
  }
  CUTE_DEVICE bool has_rounds() const { return Traits::kPersistent && !in_cluster(); }

  // Those that take tiles.
  CUTE_DEVICE int n_ctas() const {
    return is_listed() ? min(device::load(params.order.list + 1), device::grid_size())
                       : device::grid_size();
  }

  // The place of a CTA in its round. A section has two rounds. NOTE: kernels of causal masks alone do not turn, which evens
  // nothing out in the configs that run there.
  static constexpr bool kTurns = (kFeatures.left_window || Variant::kHasMask) &&
                                 !kFeatures.listed_tiles && !variant::kSortsTiles<Variant>;
  CUTE_DEVICE int turned(int cta) const {
    Turns const& turns = params.turns;
    int n_times;
    int further;
    turns.by_ctas(n_times, further, round / 2 * turns.step);
    int const turned = cta + further;
    return turned < turns.by_ctas.divisor ? turned : turned - turns.by_ctas.divisor;
  }

  CUTE_DEVICE int index_of_round() const {
    int cta = device::block_idx();
    if (has_rounds()) {
      int const n_ctas = this->n_ctas();
      if (kFeatures.listed_tiles && cta >= n_ctas) {
        return n_tiles();
      }
      if constexpr (kTurns) {
        cta = turned(cta);
      }
      return round * n_ctas + (round % 2 == 0 ? cta : n_ctas - 1 - cta);
    }
    return in_cluster() ? cta / params.problem.cluster : cta;
  }

  CUTE_DEVICE int n_tiles() const {
    return is_listed() ? device::load(params.order.list) * params.order.n_rest
                       : params.order.n_tiles;
  }

  // The listed tile that an index means, among all in a section of heads and splits; `rest` becomes its head and split.
  CUTE_DEVICE ListedTile listed(int& rest, int index) const {
    TileOrder const& order = params.order;
    int const per_section = device::load(order.list) * order.section;
    int section = 0;
    for (; section < order.last_section && index >= per_section; ++section) {
      index -= per_section;
    }
    int place;
    if (section == order.last_section) {
      order.by_last_section(place, rest, index);
    } else {
      order.by_section(place, rest, index);
    }
    rest += section * order.section;
    return device::load(reinterpret_cast<ListedTile const*>(order.list) + 1 + place);
  }

  CUTE_DEVICE Tile at(int index) const {
    TileOrder const& order = params.order;
    auto const& problem = params.problem;
    int m_block;
    int rest;  // split, head and batch
    int sequence = 0;
    if (is_listed()) {
      ListedTile const tile = listed(rest, index);
      m_block = tile.m_block;
      sequence = tile.sequence;
    } else if constexpr (kFeatures.right_window || Variant::kHasMask) {
      int const section = min(order.by_section_tiles.div(index), order.last_section);
      int const in_section = index - section * order.by_section_tiles.divisor;
      int from_longest;
      if (section == order.last_section) {
        order.by_last_section(from_longest, rest, in_section);
      } else {
        order.by_section(from_longest, rest, in_section);
      }
      m_block = abs(order.longest - from_longest);
      rest += section * order.section;
    } else {
      order.by_m_blocks(rest, m_block, index);
    }
    Tile tile;
    tile.exists = true;
    if (in_cluster()) {
      tile.split = device::cluster_rank();
    } else {
      order.by_splits(rest, tile.split, rest);
    }
    if (is_listed()) {
      tile.head = rest;
      tile.batch = sequence;
    } else {
      order.by_heads(tile.batch, tile.head, rest);
    }
    int const n_queries = Traits::kNConsumers * queries_per_warpgroup(params);
    tile.first_query = m_block * n_queries;
    find_rows(tile);
    if constexpr (Variant::kHasMask) {
      tile.blocks = places(tile);
    } else {
      tile.blocks = attended(tile, tile.first_query, n_queries);
    }
    if constexpr (kFeatures.fixed_splits) {
      if (!folds(params)) {
        tile.blocks = fixed_split(tile.blocks, tile.split, Traits::kBlockN);
      }
    } else if (problem.num_splits > 1) {
      int const share = order.by_splits.div(tile.blocks.size() + problem.num_splits - 1);
      tile.blocks.begin += tile.split * share;
      tile.blocks.end = min(tile.blocks.begin + share, tile.blocks.end);
    }
    return tile;
  }

 protected:
  CUTE_DEVICE void find_rows(Tile& tile) const {
    auto const& problem = params.problem;
    tile.q_rows = problem.q_sequences().rows_of(tile.batch, device::Loader{});
    if constexpr (kFeatures.paged_kv) {
      tile.k_rows =
          params.pages.rows_of(tile.batch, problem.kv().sequences.longest, device::Loader{});
    } else {
      tile.k_rows = problem.kv().sequences.rows_of(tile.batch, device::Loader{});
    }
  }

  // The places of a tile's blocks under a mask.
  CUTE_DEVICE Interval places(Tile const& tile) const {
    if constexpr (variant::kTakesSpans<Variant>) {
      variant::BlockSpan const span = device::load(params.spans.of_list(list_of(params, tile)));
      return {span.begin, span.end};
    } else {
      return {0, walk(params, tile).list[0]};
    }
  }

  // The blocks of keys that some of these queries attend.
  CUTE_DEVICE Interval attended(Tile const& tile, int first_query, int n_queries) const {
    int const end_query = min(first_query + n_queries, tile.q_rows.length);
    auto const band = keys_from<kFeatures>(params, tile, first_query + tile.diagonal());
    Interval keys = band.of_some(end_query - first_query);
    if (first_query >= end_query) {
      keys.end = 0;
    }
    return keys.blocks_touched(Traits::kBlockN);
  }

 public:
  // What the places of a tile's blocks stand for.
  CUTE_DEVICE static auto walk(ParamsWith<Variant> const& params, Tile const& tile) {
    int const n_queries = Traits::kNConsumers * queries_per_warpgroup(params);
    if constexpr (variant::kTakesSpans<Variant>) {
      return variant::SpanWalk{
          params.lists.list(tile.batch, tile.head, tile.first_query / n_queries)};
    } else {
      return variant::walk_of<Variant>(params, tile.batch, tile.head, tile.first_query / n_queries);
    }
  }

  // Those of a tile's blocks that some row of a warpgroup attends, by their places.
  CUTE_DEVICE Interval blocks_of_warpgroup(Tile const& tile, int warpgroup) const {
    if constexpr (Variant::kHasMask) {
      return tile.blocks;
    }
    int const n_queries = queries_per_warpgroup(params);
    Interval const blocks = attended(tile, tile.first_query + warpgroup * n_queries, n_queries);
    return {.begin = max(blocks.begin, tile.blocks.begin), .end = min(blocks.end, tile.blocks.end)};
  }
  // The same by spans; `whole` becomes those that the mask is known to show all of.
  CUTE_DEVICE Interval blocks_of_warpgroup(Tile const& tile, int warpgroup, Interval& whole) const {
    // NOTE: loaded whether it holds or not, so that it is on its way beside that of the tile.
    variant::BlockSpan const span =
        device::load(params.spans.of_list(list_of(params, tile)) + 1 + warpgroup);
    bool const holds = tile.blocks.begin < variant::kListedPlaces;
    whole = {holds ? span.whole_begin : 0, holds ? span.whole_end : 0};
    return {.begin = max(holds ? span.begin : 0, tile.blocks.begin),
            .end = holds ? min(span.end, tile.blocks.end) : tile.blocks.end};
  }

  // The number of a tile's list.
  CUTE_DEVICE static int64_t list_of(ParamsWith<Variant> const& params, Tile const& tile) {
    int const n_queries = Traits::kNConsumers * queries_per_warpgroup(params);
    return params.lists.index_of(tile.batch, tile.head, tile.first_query / n_queries);
  }

  CUTE_DEVICE static int queries_per_warpgroup(KernelParams const& params) {
    return Traits::kPackGqa ? params.order.by_group.div(Traits::kMmaM) : Traits::kMmaM;
  }
};

// A row of a warpgroup's tile: row r is query r / group, head r % group.
struct PackedRow {
  int query;  // from the warpgroup's first
  int head;   // from the first of the group
};
template <class Traits>
CUTE_DEVICE PackedRow unpack_row(KernelParams const& params, int row) {
  PackedRow unpacked{row, 0};
  if constexpr (Traits::kPackGqa) {
    params.order.by_group(unpacked.query, unpacked.head, row);
  }
  return unpacked;
}

// Whether a row of a warpgroup's tile is of the tile's sequence. Where it is not, Q holds a neighbour's row, zeros or, past the
// last query of a group that does not divide kMmaM, what no load wrote.
template <class Traits, ForwardFeatures kFeatures>
CUTE_DEVICE bool row_exists(KernelParams const& params, Tile const& tile, int first_query,
                            PackedRow const& row) {
  bool const in_warpgroup =
      !Traits::kPackGqa ||
      row.query < TileSchedule<Traits, kFeatures>::queries_per_warpgroup(params);
  return in_warpgroup && first_query + row.query < tile.q_rows.length;
}

// How many do, which are the first, of a tile of one warpgroup.
template <class Traits, ForwardFeatures kFeatures>
CUTE_DEVICE int count_rows(KernelParams const& params, Tile const& tile) {
  int const group = Traits::kPackGqa ? params.order.by_group.divisor : 1;
  int const n_queries = TileSchedule<Traits, kFeatures>::queries_per_warpgroup(params);
  return min(n_queries, tile.q_rows.length - tile.first_query) * group;
}

}  // namespace pyflash::sm90
