// The tiles of a backward, on the device: blocks of keys, and the blocks of queries that attend them.
#pragma once

#include "cute_kernels/backward_params.h"
#include "cute_kernels/device.h"

namespace pyflash::backward {

// The keys that a CTA owns, and the blocks of queries of which some attend some of them: of each query head that it goes through.
template <BackwardFeatures kFeatures>
struct Tile {
  AttentionGradients const& problem;
  int first_key = 0;  // of the sequence
  int head_kv = 0;
  int first_head = 0;  // of q: those of the group that the CTA goes through
  int n_heads = 0;
  int batch = 0;  // of the tensors
  Interval blocks = {};
  int rows_before_sums = 0;  // as AttentionGradients says
  int column_part = 0;       // where CTAs have the same keys, and a part of the columns each

  // Where sequences may be packed.
  Rows queries_found = {};
  Rows keys_found = {};
  int first_row_found = 0;
  int sequence_found = 0;

  // The rows of the sequence in the tensors.
  CUTE_DEVICE Rows queries() const {
    return kFeatures.packed ? queries_found : Rows{0, problem.q_sequences.longest};
  }
  CUTE_DEVICE Rows keys() const {
    return kFeatures.packed ? keys_found : Rows{0, problem.k_sequences.longest};
  }
  CUTE_DEVICE int sequence() const { return kFeatures.packed ? sequence_found : batch; }
  // A row of the workspace.
  CUTE_DEVICE int workspace_row(int head, int query) const {
    return problem.workspace_row(batch, head, (kFeatures.packed ? first_row_found : 0) + query);
  }

  // A row of the sums of dQ.
  CUTE_DEVICE int sums_row(int head, int query) const {
    return workspace_row(head, query) - rows_before_sums;
  }

  // The heads of the group that number `rank` of `n_ctas` goes through.
  CUTE_DEVICE void take_heads(int rank, int n_ctas) {
    n_heads = problem.heads / problem.heads_kv / n_ctas;
    first_head = (head_kv * n_ctas + rank) * n_heads;
  }

  // The queries that attend keys of the sequence; row 0 of the band is key `key`.
  CUTE_DEVICE auto queries_from(int key) const {
    return problem.mask.queries_from<kFeatures.left_window, kFeatures.right_window>(
        key, queries().length, keys().length);
  }

  // The block of keys that starts as number n_block.
  CUTE_DEVICE int key_block_at(int n_block) const {
    if constexpr (kFeatures.packed && !kFeatures.deterministic) {
      if (problem.sorts_key_blocks()) {
        return int(device::load(problem.order_of_keys + n_block));
      }
    }
    return n_block;
  }

  // The blocks of `block_q` queries of which some attend some of the tile's keys.
  CUTE_DEVICE Interval blocks_attending(int block_k, int block_q) const {
    int const n_keys = smaller(keys().length - first_key, block_k);
    return n_keys <= 0 ? Interval{}
                       : queries_from(first_key).of_some(n_keys).blocks_touched(block_q);
  }

  // From the rows of all sequences, each in whole blocks, to those of one. row: of the first key.
  CUTE_DEVICE void find_sequence(int row, int block) {
    device::Loader const load;
    int& sequence = sequence_found;
    sequence = batch;
    first_key = row;
    first_row_found = 0;
    if (problem.k_sequences.is_packed()) {
      BlockedRows const blocks{problem.k_sequences, block};
      sequence = blocks.sequence_at(row, problem.batch, load);
      first_key -= blocks.begin_of(sequence, load);
      first_row_found = problem.blocked_queries().begin_of(sequence, load);
    }
    queries_found = problem.q_sequences.rows_of(sequence, load);
    keys_found = problem.k_sequences.rows_of(sequence, load);
    if (first_key < 0) {  // cu_seqlens_k does not ascend
      keys_found.length = first_key = 0;
    }
  }
};

// The blocks of queries of a tile in order: those of each query head. Where the sums of dQ have an order, each
// block of all heads: then tiles that begin with the same block stay beside each other, however many blocks they have.
template <BackwardFeatures kFeatures>
struct MBlocks {
  Tile<kFeatures> const& tile;
  int heads_left;  // deterministic: of the block
  int group = 0;   // deterministic: heads of a block
  int head;
  int m_block;

  CUTE_DEVICE explicit MBlocks(Tile<kFeatures> const& tile)
      : tile(tile), heads_left(0), head(0), m_block(tile.blocks.begin) {
    if (tile.blocks.size() > 0) {
      heads_left = group = tile.n_heads;
      head = tile.first_head;
      if (kFeatures.deterministic && tile.problem.first_keys_first) {
        m_block = tile.blocks.end - 1;
      }
    }
  }
  CUTE_DEVICE bool exists() const {
    if constexpr (kFeatures.deterministic) {
      return tile.blocks.begin <= m_block && m_block < tile.blocks.end;
    }
    return heads_left > 0;
  }
  CUTE_DEVICE void advance() {
    if constexpr (kFeatures.deterministic) {
      ++head;
      if (--heads_left == 0) {
        heads_left = group;
        head -= group;
        m_block += tile.problem.first_keys_first ? -1 : 1;
      }
      return;
    }
    if (++m_block == tile.blocks.end) {
      m_block = tile.blocks.begin;
      ++head;
      --heads_left;
    }
  }
};

}  // namespace pyflash::backward
