// The order of a mask's tiles: by their places, or sorted by their lists' lengths, the longest first (block_lists.h). A tile stands
// for itself in each head.
#pragma once

#include <cstdint>

#include "cute_kernels/common/tile_list.h"
#include "cute_kernels/variant/block_lists.h"

namespace pyflash::variant {

// Each tile is compared with each other; of more of them a CTA has so many that their lengths even out.
inline constexpr int kMostSortedTiles = 4096;

// How many of n tiles come before one. Those of one length keep their order.
PYFLASH_HOST_DEVICE int place_by_length(int const* lengths, int n, int tile) {
  int place = 0;
  for (int i = 0; i < n; ++i) {
    place += lengths[i] > lengths[tile] || (lengths[i] == lengths[tile] && i < tile);
  }
  return place;
}

// The length of a tile of a batch in the lists of all heads.
PYFLASH_HOST_DEVICE int length_in_heads(BlockLists const& lists, int batch, int tile) {
  int sum = 0;
  for (int head = 0; head < lists.heads; ++head) {
    sum += lists.list(batch, head, tile)[0];
  }
  return sum;
}

// Tiles of queries, of all sequences together.
struct TileSort {
  template <class Variant>
  static constexpr bool kSorts = Variant::kHasMask;

  BlockLists lists;
  int batch;

  PYFLASH_HOST_DEVICE constexpr int64_t n_tiles() const { return int64_t(batch) * lists.tiles; }
  // The ints of a list as in common/tile_list.h; 0: there is none.
  PYFLASH_HOST_DEVICE constexpr int64_t size() const {
    return n_tiles() <= kMostSortedTiles ? 2 + 2 * n_tiles() : 0;
  }
  PYFLASH_HOST_DEVICE constexpr int n_groups() const { return 1; }
  PYFLASH_HOST_DEVICE constexpr int group_size() const { return int(n_tiles()); }
  PYFLASH_HOST_DEVICE int length(int, int tile) const {
    return length_in_heads(lists, tile / lists.tiles, tile % lists.tiles);
  }
  // lengths: of the tiles of the group.
  PYFLASH_HOST_DEVICE void write(int* list, int, int tile, int const* lengths) const {
    int const place = place_by_length(lengths, group_size(), tile);
    reinterpret_cast<ListedTile*>(list)[1 + place] = {tile / lists.tiles, tile % lists.tiles};
    if (tile == 0) {
      list[0] = group_size();
      list[1] = kNoWindow;  // as many CTAs as there are
    }
  }
};

// Where persistent CTAs take tiles by their places, some may be long by place alone, as the first of each head: the same CTAs would
// get them in each section. So after every two rounds tiles are dealt out from another CTA on, `turn` of them further.
PYFLASH_HOST_DEVICE constexpr int tile_of_round(int round, int cta, int n_ctas, int turn) {
  // NOTE: unsigned, where it may wrap around: any number turns all CTAs alike.
  int const turned = int((cta + unsigned(round / 2) * unsigned(turn) % n_ctas) % n_ctas);
  return round * n_ctas + (round % 2 == 0 ? turned : n_ctas - 1 - turned);
}

// Chooses between orders by the blocks of the CTA that has the most. Tiles that go by their places read keys that their neighbours
// read at the same time, which those that are sorted were measured to lose up to a tenth by. The tiles of masks that read tensors are
// always sorted: documents by their places were measured to lose as much.
//
// Places: n_ctas, 0 of kernels whose CTAs have no rounds; n_tiles, of all heads; place_of(m_block, batch, index), by places;
// sorted_place(index).
template <class Places>
struct OrderChoice {
  template <class Variant>
  static constexpr bool kChooses = Variant::kHasMask && !Variant::kMaskReadsTensors;

  static constexpr int kTurns = 31;
  static constexpr int kOrders = kTurns + 1;  // the last is the sorted one
  static constexpr int kMostRounds = 128;     // of more of them lengths even out
  static constexpr int kPercent = 105;  // of the sorted order's blocks: more of them are too many

  Places places;
  TileSort sort;
  bool sorts;  // where nothing is counted

  PYFLASH_HOST_DEVICE constexpr bool counts() const {
    return places.n_ctas > 0 && ceil_div(places.n_tiles, places.n_ctas) <= kMostRounds;
  }
  PYFLASH_HOST_DEVICE constexpr int turn_of(int order) const {
    return order * places.n_ctas / kTurns;
  }
  // The blocks of the CTA that has the most of those from `first` on, each `step`. lengths: of the tiles. list: with all sorted tiles.
  PYFLASH_HOST_DEVICE int most_blocks(int order, int const* lengths, int const* list, int first,
                                      int step) const {
    int const of_tile = 2 * sort.lists.heads;  // what it takes beside its blocks
    int most = 0;
    for (int cta = first; cta < places.n_ctas; cta += step) {
      int sum = 0;
      for (int round = 0; round * places.n_ctas < places.n_tiles; ++round) {
        int const turn = order < kTurns ? turn_of(order) : 0;
        int const index = tile_of_round(round, cta, places.n_ctas, turn);
        if (index >= places.n_tiles) {
          continue;
        }
        ListedTile tile;
        if (order < kTurns) {
          places.place_of(tile.m_block, tile.sequence, index);
        } else {
          tile = reinterpret_cast<ListedTile const*>(list)[1 + places.sorted_place(index)];
        }
        int const length = lengths[tile.sequence * sort.lists.tiles + tile.m_block];
        sum += length > 0 ? length + of_tile : 0;
      }
      most = larger(most, sum);
    }
    return most;
  }
  // most: of each order. Where tiles go by their places a list has no tiles, and the turn.
  PYFLASH_HOST_DEVICE void write(int* list, int const* most) const {
    int best = 0;
    for (int order = 1; order < kTurns && counts(); ++order) {
      best = most[order] < most[best] ? order : best;
    }
    if (!counts() || int64_t(most[best]) * 100 <= int64_t(most[kTurns]) * kPercent) {
      list[0] = 0;
      list[1] = turn_of(best);
    }
  }
};

// Tiles of keys, of each sequence by themselves: sections of heads stay what they are. A list has the tiles of a sequence after
// those of the one before; where sequences share lists, those of one.
struct KeyTileSort {
  // A CTA has one tile, and the next that is free has the next tile: their order matters where the last may be long.
  template <class Variant>
  static constexpr bool kSorts = Variant::kHasMask && Variant::kMaskReadsTensors;

  BlockLists lists;

  PYFLASH_HOST_DEVICE constexpr int64_t size() const {
    return lists.tiles <= kMostSortedTiles ? int64_t(lists.batches) * lists.tiles : 0;
  }
  PYFLASH_HOST_DEVICE constexpr int n_groups() const { return lists.batches; }
  PYFLASH_HOST_DEVICE constexpr int group_size() const { return lists.tiles; }
  PYFLASH_HOST_DEVICE int length(int batch, int tile) const {
    return length_in_heads(lists, batch, tile);
  }
  PYFLASH_HOST_DEVICE void write(int* list, int batch, int tile, int const* lengths) const {
    list[batch * lists.tiles + place_by_length(lengths, lists.tiles, tile)] = tile;
  }
  // The tile at a place of a sequence.
  static PYFLASH_HOST_DEVICE int const* entry(int const* list, BlockLists const& lists, int batch,
                                              int place) {
    return list + (lists.batches == 1 ? 0 : batch) * lists.tiles + place;
  }
};

}  // namespace pyflash::variant
