// Which tile of a backward a CTA owns.
#pragma once

#include "cute_kernels/common/backward_tile.h"
#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/backward/kernel_params.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/variant/gradient.h"
#include "cute_kernels/variant/tile_order.h"

namespace pyflash::sm90::backward {

using namespace cute;
using pyflash::backward::Tile;

template <class Traits, BackwardFeatures kFeatures, class Variant = variant::NoVariant>
CUTE_DEVICE Tile<kFeatures> tile_of(variant::ParamsOf<KernelParams, Variant> const& params,
                                    int index) {
  constexpr int kBlockN = Traits::kBlockN;
  TileOrder const& order = params.order;
  int n_block, head;
  order.find(n_block, head, index / params.cluster);
  if (kFeatures.deterministic && !params.problem.first_keys_first) {
    n_block = order.n_blocks - 1 - n_block;
  }
  Tile<kFeatures> tile{.problem = params.problem};
  if constexpr (Traits::kColumnParts > 1) {
    tile.column_part = n_block % Traits::kColumnParts;
    n_block /= Traits::kColumnParts;
  }
  if constexpr (kFeatures.dropout || variant::kIsVariant<Variant>) {
    head += params.first_head;
  }
  order.by_heads(tile.batch, tile.head_kv, head);
  tile.take_heads(index % params.cluster, params.cluster);
  if constexpr (!kFeatures.deterministic) {
    tile.rows_before_sums = params.problem.rows_before_sums(head);
  }
  if constexpr (variant::kSortsKeyTiles<Variant> && variant::kWalksLists<kFeatures, Variant>) {
    if (params.order_of_tiles != nullptr) {
      n_block = device::load(
          variant::KeyTileSort::entry(params.order_of_tiles, params.lists, tile.batch, n_block));
    }
  } else {
    n_block = tile.key_block_at(n_block);
  }
  if constexpr (kFeatures.packed) {
    tile.find_sequence(n_block * kBlockN, kBlockN);
  } else {
    tile.first_key = n_block * kBlockN;
  }
  tile.blocks = tile.blocks_attending(kBlockN, Traits::kBlockM);
  return tile;
}

}  // namespace pyflash::sm90::backward
