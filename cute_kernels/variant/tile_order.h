// Tiles of queries in the order of their lists' lengths, the longest first (block_lists.h): of masks that read tensors, where
// nothing else tells which tiles are long. A tile stands for itself in each head.
#pragma once

#include <cstdint>

#include "cute_kernels/common/tile_list.h"
#include "cute_kernels/variant/block_lists.h"

namespace pyflash::variant {

template <class Variant>
inline constexpr bool kSortsTiles = Variant::kHasMask && Variant::kMaskReadsTensors;

struct TileSort {
  // Each tile is compared with each other; of more of them a CTA has so many that their lengths even out.
  static constexpr int kMostTiles = 4096;

  BlockLists lists;
  int batch;

  PYFLASH_HOST_DEVICE constexpr int64_t n_tiles() const { return int64_t(batch) * lists.tiles; }
  // The ints of a list as in common/tile_list.h; 0: there is none.
  PYFLASH_HOST_DEVICE constexpr int64_t size() const {
    return n_tiles() <= kMostTiles ? 2 + 2 * n_tiles() : 0;
  }
  // Of the lists of all heads.
  PYFLASH_HOST_DEVICE int length(int tile) const {
    int sum = 0;
    for (int head = 0; head < lists.heads; ++head) {
      sum += lists.list(tile / lists.tiles, head, tile % lists.tiles)[0];
    }
    return sum;
  }
  // lengths: of all tiles. Those of one length keep their order.
  PYFLASH_HOST_DEVICE void write(int* list, int tile, int const* lengths) const {
    int const n = int(n_tiles());
    int place = 0;
    for (int i = 0; i < n; ++i) {
      place += lengths[i] > lengths[tile] || (lengths[i] == lengths[tile] && i < tile);
    }
    reinterpret_cast<ListedTile*>(list)[1 + place] = {tile / lists.tiles, tile % lists.tiles};
    if (tile == 0) {
      list[0] = n;
      list[1] = 0;
    }
  }
};

}  // namespace pyflash::variant
