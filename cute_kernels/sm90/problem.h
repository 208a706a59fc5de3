// The tiles of a problem: their order, their coordinates, and the blocks of keys that each of them attends.
#pragma once

#include <cute/tensor.hpp>
#include <cutlass/fast_math.h>

#include "cute_kernels/params.h"
#include "cute_kernels/sm90/device_sm90.h"
#include "cute_kernels/sm90/features.h"

namespace pyflash::sm90 {

using namespace cute;
using cutlass::FastDivmod;

// Tiles are numbered; a number is taken apart by these. A head is one of K and V where query heads are packed.
//
// Neighbouring tiles share a head, so that its K and V stay in L2. For masks that leave the last Q blocks the most to do,
// the tiles of a section of heads, as many as have their K and V in L2 together, go from the last Q block to the first.
struct TileOrder {
  int n_tiles;
  int section;        // heads, batches and splits in a section; the last may be smaller
  int last_section;   // the number of the last section
  FastDivmod by_m_blocks;
  FastDivmod by_splits;
  FastDivmod by_heads;
  FastDivmod by_section_tiles;  // of a section
  FastDivmod by_section;
  FastDivmod by_last_section;
  FastDivmod by_group;  // query heads per head of K and V; 1 where they are not packed
};

struct KernelParams {
  device::TensorMap q_map;  // (d_head, group, seqlen_q, heads, batch)
  device::TensorMap k_map;  // (d_head, seqlen_k, heads_kv, batch)
  device::TensorMap v_map;  // (d_head, seqlen_k, heads_kv, batch)
  ForwardParams problem;
  float const* sinks;  // (heads), or nullptr
  TileOrder order;
};

struct Rows {
  int begin;
  int length;
};

// Rows of one sequence: all of a padded one, or where a packed one lies, within [0, total) whatever cu_seqlens holds.
CUTE_DEVICE Rows rows_of(int const* cu_seqlens, int batch, int seqlen, int total) {
  if (cu_seqlens == nullptr) {
    return {0, seqlen};
  }
  int const begin = min(max(device::load(cu_seqlens + batch), 0), total);
  int const end = min(max(device::load(cu_seqlens + batch + 1), begin), total);
  return {begin, end - begin};
}

// A tile of Q and the blocks of keys that it attends, the last one first.
struct Tile {
  bool exists;
  int first_query;  // of the tile, in the sequence
  int split;
  int head;
  int batch;
  Rows q_rows;
  Rows k_rows;
  int begin_block;
  int end_block;

  CUTE_DEVICE bool has_queries() const { return first_query < q_rows.length; }
  CUTE_DEVICE bool has_keys() const { return begin_block < end_block; }
  // The key that query 0 of the sequence is aligned with.
  CUTE_DEVICE int diagonal() const { return k_rows.length - q_rows.length; }
};

// The tiles of one CTA, in order. Persistent CTAs take one in each round; every other round goes backwards, so that where
// tiles are sorted by their length nobody gets the longest each time.
template <class Traits, Features kFeatures>
struct TileSchedule {
  KernelParams const& params;
  int round = 0;

  CUTE_DEVICE explicit TileSchedule(KernelParams const& params) : params(params) {}

  // The next tile that attends something; those before it that attend nothing go to on_empty.
  template <class OnEmpty>
  CUTE_DEVICE Tile next(OnEmpty&& on_empty) {
    while (Traits::kPersistent || round == 0) {
      int const cta = device::block_idx();
      int const n_ctas = device::grid_size();
      int const index = Traits::kPersistent
                            ? round * n_ctas + (round % 2 == 0 ? cta : n_ctas - 1 - cta)
                            : cta;
      if (index >= params.order.n_tiles) {
        break;
      }
      ++round;
      Tile const tile = at(index);
      if (tile.has_queries()) {
        if (tile.has_keys()) {
          return tile;
        }
        on_empty(tile);
      }
    }
    return Tile{};
  }
  CUTE_DEVICE Tile next() {
    return next([](Tile const&) {});
  }

 private:
  CUTE_DEVICE Tile at(int index) const {
    TileOrder const& order = params.order;
    ForwardParams const& problem = params.problem;
    int m_block;
    int rest;  // split, head and batch
    if constexpr (kFeatures.right_window) {
      int in_section;
      int const section = order.by_section_tiles.divmod(in_section, index);
      int from_last;
      if (section == order.last_section) {
        order.by_last_section(from_last, rest, in_section);
      } else {
        order.by_section(from_last, rest, in_section);
      }
      m_block = order.by_m_blocks.divisor - 1 - from_last;
      rest += section * order.section;
    } else {
      order.by_m_blocks(rest, m_block, index);
    }
    Tile tile;
    tile.exists = true;
    order.by_splits(rest, tile.split, rest);
    order.by_heads(tile.batch, tile.head, rest);
    int const n_queries = Traits::kNConsumers * queries_per_warpgroup(params);
    tile.first_query = m_block * n_queries;
    tile.q_rows =
        rows_of(problem.cu_seqlens_q, tile.batch, problem.seqlen_q, problem.total_q);
    tile.k_rows =
        rows_of(problem.cu_seqlens_k, tile.batch, problem.seqlen_k, problem.total_k);
    set_blocks(tile, min(tile.first_query + n_queries, tile.q_rows.length));
    return tile;
  }

  // The blocks of keys that some query of the tile attends, or this split's share of them.
  CUTE_DEVICE void set_blocks(Tile& tile, int end_query) const {
    constexpr int kBlockN = Traits::kBlockN;
    ForwardParams const& problem = params.problem;
    int begin = 0;
    int end = tile.k_rows.length;
    if constexpr (kFeatures.left_window) {
      begin = max(tile.first_query + tile.diagonal() - problem.window_left, 0);
    }
    if constexpr (kFeatures.right_window) {
      end = min(end, end_query + tile.diagonal() + problem.window_right);
    }
    tile.begin_block = begin / kBlockN;
    tile.end_block = ceil_div(max(end, 0), kBlockN);
    if (problem.num_splits > 1) {
      int const share = params.order.by_splits.div(
          max(tile.end_block - tile.begin_block, 0) + problem.num_splits - 1);
      tile.begin_block += tile.split * share;
      tile.end_block = min(tile.begin_block + share, tile.end_block);
    }
  }

 public:
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

}  // namespace pyflash::sm90
