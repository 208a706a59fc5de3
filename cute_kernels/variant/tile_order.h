// Tiles in the order of their lists' lengths, the longest first (block_lists.h): of masks that read tensors, where nothing else
// tells which tiles are long. A tile stands for itself in each head. Where a tensor has a number for each sequence or head alone,
// tiles of queries are long by their place, as where there is none: sorted, neighbours would share no keys.
#pragma once

#include <cstdint>

#include "cute_kernels/common/tile_list.h"
#include "cute_kernels/variant/block_lists.h"

namespace pyflash::variant {

template <class Variant>
inline constexpr bool kSortsTiles = Variant::kHasMask && Variant::kMaskReadsTensorsByPosition;
template <class Variant>
inline constexpr bool kSortsKeyTiles = Variant::kHasMask && Variant::kMaskReadsTensors;

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

// Tiles of keys, of each sequence by themselves: sections of heads stay what they are. A list has the tiles of a sequence after
// those of the one before; where sequences share lists, those of one.
struct KeyTileSort {
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
