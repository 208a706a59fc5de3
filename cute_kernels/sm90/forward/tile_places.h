// How CTAs come to a mask's tiles, for the choice between orders of them (variant/tile_order.h).
#pragma once

#include "cute_kernels/sm90/forward/kernel_params.h"

namespace pyflash::sm90 {

struct TilePlaces {
  TileOrder order;
  int n_ctas;            // that take a tile in each round; 0: there are no rounds
  int n_tiles;           // of all heads
  int rest_of_sequence;  // heads and splits of a sequence's tiles

  PYFLASH_HOST_DEVICE void place_of(int& m_block, int& batch, int index) const {
    int rest;
    order.by_places(m_block, rest, index);
    batch = rest / rest_of_sequence;
  }
  PYFLASH_HOST_DEVICE int sorted_place(int index) const { return index / rest_of_sequence; }
};

}  // namespace pyflash::sm90
