// The tiles of a backward: blocks of keys, and the blocks of queries that attend them.
#pragma once

#include <cute/tensor.hpp>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/backward/kernel_params.h"

namespace pyflash::sm90::backward {

using namespace cute;

// The keys that a CTA owns, and the blocks of queries of which some attend some of them: of each query head of the group.
struct Tile {
  int first_key;
  int head_kv;
  int batch;
  Interval blocks;
};

// The queries that attend keys of a sequence; row 0 of the band is key first_key.
template <BackwardFeatures kFeatures>
CUTE_DEVICE auto queries_from(BackwardParams const& problem, int first_key) {
  return problem.mask().queries_from<kFeatures.left_window, kFeatures.right_window>(
      first_key, problem.q_sequences().longest, problem.k_sequences().longest);
}

template <class Traits, BackwardFeatures kFeatures>
CUTE_DEVICE Tile tile_of(KernelParams const& params, int index) {
  constexpr int kBlockN = Traits::kBlockN;
  BackwardParams const& problem = params.problem;
  TileOrder const& order = params.order;
  int const section = min(order.by_section_tiles.div(index), order.last_section);
  int const in_section = index - section * order.by_section_tiles.divisor;
  int n_block, head;
  if (section == order.last_section) {
    order.by_last_section(n_block, head, in_section);
  } else {
    order.by_section(n_block, head, in_section);
  }
  Tile tile;
  tile.first_key = n_block * kBlockN;
  order.by_heads(tile.batch, tile.head_kv, head + section * order.by_section.divisor);
  int const n_keys = min(problem.k_sequences().longest - tile.first_key, kBlockN);
  tile.blocks = queries_from<kFeatures>(problem, tile.first_key)
                    .of_some(n_keys)
                    .blocks_touched(Traits::kBlockM);
  return tile;
}

// The blocks of queries of a tile in order: those of each query head of the group.
template <class Traits>
struct MBlocks {
  Tile const& tile;
  int heads_left;
  int head;
  int m_block;

  CUTE_DEVICE MBlocks(KernelParams const& params, Tile const& tile)
      : tile(tile), heads_left(0), head(0), m_block(tile.blocks.begin) {
    if (tile.blocks.size() > 0) {
      heads_left = params.problem.heads / params.problem.heads_kv;
      head = tile.head_kv * heads_left;
    }
  }
  CUTE_DEVICE bool exists() const { return heads_left > 0; }
  CUTE_DEVICE void advance() {
    if (++m_block == tile.blocks.end) {
      m_block = tile.blocks.begin;
      ++head;
      --heads_left;
    }
  }
};

}  // namespace pyflash::sm90::backward
