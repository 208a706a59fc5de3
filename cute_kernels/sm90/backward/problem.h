// The tiles of a backward: blocks of keys, and the blocks of queries that attend them.
#pragma once

#include <cute/tensor.hpp>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/backward/config.h"
#include "cute_kernels/sm90/backward/params.h"

namespace pyflash::sm90::backward {

using namespace cute;

// The keys that a CTA owns, and the blocks [m_begin, m_end) of queries of which some attend some of them: of each query head
// of the group.
struct Tile {
  int first_key;
  int head_kv;
  int batch;
  int m_begin;
  int m_end;

  CUTE_DEVICE int n_blocks() const { return max(m_end - m_begin, 0); }
};

template <class Traits, BackwardFeatures kFeatures>
CUTE_DEVICE Tile tile_of(KernelParams const& params, int index) {
  constexpr int kBlockM = Traits::kBlockM;
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
  int const diagonal = problem.seqlen_k - problem.seqlen_q;  // the key that query 0 is aligned with
  int const last_key = min(tile.first_key + kBlockN, problem.seqlen_k) - 1;
  int begin = 0;
  int end = problem.seqlen_q;
  if constexpr (kFeatures.right_window) {
    begin = max(tile.first_key - diagonal - problem.window_right, 0);
  }
  if constexpr (kFeatures.left_window) {
    end = max(min(end, last_key - diagonal + problem.window_left + 1), 0);
  }
  tile.m_begin = begin / kBlockM;
  tile.m_end = ceil_div(end, kBlockM);
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
      : tile(tile), heads_left(0), head(0), m_block(tile.m_begin) {
    if (tile.n_blocks() > 0) {
      heads_left = params.problem.heads / params.problem.heads_kv;
      head = tile.head_kv * heads_left;
    }
  }
  CUTE_DEVICE bool exists() const { return heads_left > 0; }
  CUTE_DEVICE void advance() {
    if (++m_block == tile.m_end) {
      m_block = tile.m_begin;
      ++head;
      --heads_left;
    }
  }
};

// Where a block of queries of a head is in the workspace, counted in blocks, of which memory has no room for 2^31.
CUTE_DEVICE int workspace_block(BackwardParams const& problem, int batch, int head, int m_block) {
  return (batch * problem.heads + head) * problem.n_m_blocks + m_block;
}

}  // namespace pyflash::sm90::backward
