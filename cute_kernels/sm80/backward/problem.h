// Which tile of a backward a CTA owns, and where its tensors lie.
#pragma once

#include <cute/tensor_impl.hpp>

#include "cute_kernels/common/backward_tile.h"
#include "cute_kernels/common/blocked_rows.h"
#include "cute_kernels/device.h"

namespace pyflash::sm80::backward {

using namespace cute;
using pyflash::backward::Tile;

// The blocks of keys of a head.
PYFLASH_HOST_DEVICE constexpr int n_key_blocks(BackwardParams const& problem, int block_n) {
  Sequences const& keys = problem.k_sequences;
  return keys.tensor_rows() == 0 ? 0
                                 : int(BlockedRows{keys, block_n}.n_rows(problem.batch) / block_n);
}

// CTAs that divide the query heads of a head of K and V.
template <BackwardFeatures kFeatures>
CUTE_DEVICE int ctas_of_group(BackwardParams const& problem) {
  return kFeatures.deterministic ? 1 : problem.ctas_of_group;
}

// Tiles of a head, or of those of its query heads that a CTA goes through, are neighbours: a head below is such a part. Under a right
// window, where the first keys have the most queries, the tiles of a section of heads, as many as have their Q, dO and sums of dQ in L2
// together, go from the first keys to the last. Deterministic kernels go the way in which dQ is summed: a CTA waits for those with
// lower indices alone, which start before it.
template <class Traits, BackwardFeatures kFeatures>
CUTE_DEVICE Tile<kFeatures> tile_of(BackwardParams const& problem) {
  constexpr int kBlockN = Traits::kBlockN;
  int const n_blocks = n_key_blocks(problem, kBlockN);
  int const n_parts = ctas_of_group<kFeatures>(problem);
  int n_block = device::block_idx() % n_blocks;
  int head = device::block_idx() / n_blocks;
  if constexpr (kFeatures.right_window) {
    constexpr int kL2Rows = (32 << 20) / (Traits::kHeadDim * (2 * 2 + int(sizeof(float))));
    int const n_heads = problem.heads_of_slice * n_parts;
    int const rows = max(problem.q_sequences.tensor_rows(), 1);
    int const in_L2 = kL2Rows / rows / (problem.heads / problem.heads_kv / n_parts);
    int const per_section = max(min(in_L2, n_heads), 1);
    int const first = head / per_section * per_section;
    int const in_section = device::block_idx() - first * n_blocks;
    int const section = min(per_section, n_heads - first);  // the last may be smaller
    n_block = in_section / section;
    head = first + in_section % section;
  }
  if (kFeatures.deterministic && !problem.first_keys_first) {
    n_block = n_blocks - 1 - n_block;
  }
  Tile<kFeatures> tile{.problem = problem};
  int const part = head % n_parts;
  head = head / n_parts + problem.first_head_of_slice;
  tile.head_kv = head % problem.heads_kv;
  tile.batch = head / problem.heads_kv;
  tile.take_heads(part, n_parts);
  if constexpr (kFeatures.packed) {
    n_block = tile.key_block_at(n_block);
    tile.find_sequence(n_block * kBlockN, kBlockN);
  } else {
    tile.first_key = n_block * kBlockN;
  }
  constexpr int kBlocks = Traits::kWorkspaceBlock / Traits::kBlockM;
  Interval const blocks = tile.blocks_attending(kBlockN, Traits::kWorkspaceBlock);
  tile.blocks = {blocks.begin * kBlocks, blocks.end * kBlocks};
  return tile;
}

}  // namespace pyflash::sm80::backward
