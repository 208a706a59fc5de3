// A computing warpgroup: 64 rows of every tile of the CTA.
#pragma once

#include <cute/tensor.hpp>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/sm90/forward/block_softmax.h"
#include "cute_kernels/sm90/forward/gemms.h"
#include "cute_kernels/sm90/forward/kernel_params.h"
#include "cute_kernels/sm90/forward/problem.h"
#include "cute_kernels/sm90/forward/scores.h"
#include "cute_kernels/sm90/forward/shares.h"
#include "cute_kernels/sm90/forward/store.h"
#include "cute_kernels/sm90/forward/traits.h"
#include "cute_kernels/sm90/gemm.h"

namespace pyflash::sm90 {

using namespace cute;
using device::Site;

template <class Traits, ForwardFeatures kFeatures, class Variant>
struct Consumer {
  using Params = ParamsWith<Variant>;
  using SharedStorage = typename Traits::SharedStorage;
  using Schedule = ScheduleOf<Traits, kFeatures, Variant>;
  using RowSoftmax = BlockSoftmax<Traits, kFeatures, Variant>;
  using TileSoftmax = typename RowSoftmax::TileSoftmax;
  using AccS = typename Gemms<Traits>::AccS;
  static constexpr int kBlockN = Traits::kBlockN;

  Params const& params;
  int const first_row_query;  // the warpgroup's first query, from the tile's
  bool const is_split;

  Gemms<Traits> gemms;
  Schedule schedule;
  Tile tile{};
  Interval blocks{};        // of the tile, that this warpgroup attends something of
  RowSoftmax rows;          // of the tile
  bool has_P = false;       // of the tile's last block: its PV is left to do
  bool accumulate = false;  // PV onto what is in O
  int n_skip = 0;           // blocks between the last one attended and the next

  Tile done{};               // the tile before
  bool is_unstored = false;  // its O is complete

  CUTE_DEVICE Consumer(Params const& params, SharedStorage& smem, int warpgroup)
      : params(params),
        first_row_query(warpgroup * Schedule::queries_per_warpgroup(params)),
        is_split(sm90::is_split<kFeatures>(params)),
        gemms(smem, warpgroup),
        schedule(params),
        rows(params) {}

  CUTE_DEVICE void run() {
    if (gemms.warpgroup + 1 == Traits::kNConsumers) {
      gemms.pass_turn();
    }
    while (true) {
      bool has_begun = false;
      if (has_P) {
        has_begun = finish_tile();
      } else {
        next_tile();
      }
      if (!has_begun) {
        store_unstored();
        skip_blocks();
        if (!tile.exists) {
          break;
        }
        if (!has_P) {
          attend_nothing();
          continue;
        }
        begin_tile();
      }
      attend_blocks();
    }
    if (gemms.warpgroup == 0) {
      gemms.wait_for_turn();  // the last turn that was passed
    }
  }

 private:
  CUTE_DEVICE void next_tile() {
    tile = schedule.next();
    blocks = schedule.blocks_of_warpgroup(tile, gemms.warpgroup);
    has_P = blocks.size() > 0;
    n_skip += has_P ? tile.blocks.end - blocks.end : tile.blocks.size();
    rows.begin(tile, first_query(tile));
  }

  // Of a tile of which this warpgroup attends nothing, O is 0.
  CUTE_DEVICE void attend_nothing() {
    done = tile;
    clear(gemms.acc_O);
    rows.softmax.reset();
    is_unstored = true;
    if (tile.blocks.size() > 0) {
      gemms.pipeline_Q.wait(gemms.read_Q);
      gemms.release_Q();
    }
  }

  // The tile's first block, to P.
  CUTE_DEVICE void begin_tile() {
    AccS acc_S;
    gemms.issue_first_QK(acc_S);
    first_softmax(acc_S);
  }

  // Mainloop: QK^T of block n_block - 1 beside PV of block n_block.
  CUTE_DEVICE void attend_blocks() {
    accumulate = false;
    drop_P(blocks.end - 1);
    clear_tail_of_V(blocks.end - 1);
    for (int n_block = blocks.end - 1; n_block > blocks.begin; --n_block) {
      AccS acc_S;
      gemms.wait_for_turn();
      if constexpr (Traits::kOverlap) {
        gemms.issue_QK(acc_S);
        gemms.issue_PV(accumulate);
        gemms.pass_turn();
        gemm_wait<1>(acc_S);
      } else {
        gemms.issue_PV(accumulate);
        gemms.issue_QK(acc_S);
        gemms.pass_turn();
        gemm_wait<1>(gemms.acc_O);
        gemms.release_V();
        gemm_wait<0>(acc_S);
      }
      gemms.finish_QK(n_block - 1 == blocks.begin);
      bool const rescale = rows.to_P(false_type{}, acc_S, tile, first_query(tile), n_block - 1);
      if constexpr (Traits::kOverlap) {
        gemm_wait<0>(gemms.acc_O);
        gemms.release_V();
      }
      if (rescale) {
        device::at(Site::O_rescale);
        TileSoftmax::rescale(gemms.acc_O, rows.correction);
      }
      convert_P<typename Traits::Element>(acc_S, gemms.tOrP);
      drop_P(n_block - 1);
      accumulate = true;
    }
    n_skip = blocks.begin - tile.blocks.begin;
  }

  // Between tiles: PV of the last block while the next tile is found, and QK^T of that one's first block while O is stored.
  // Returns whether the next tile has begun: else O is left to store.
  CUTE_DEVICE bool finish_tile() {
    done = tile;
    TileSoftmax const done_softmax = rows.softmax;
    clear_head_of_V(blocks.begin);
    gemms.issue_PV(accumulate);
    next_tile();
    // NOTE: further on, V of this tile would be in the way of the blocks that other warpgroups wait for.
    if (!has_P || n_skip >= Traits::kStages || is_split) {
      gemm_wait<0>(gemms.acc_O);
      gemms.release_V();
      is_unstored = true;
      return false;
    }
    AccS acc_S;
    CUTE_NO_UNROLL
    for (int i = 0; i < n_skip; ++i) {
      gemms.skip_K();
    }
    gemms.issue_first_QK(acc_S);
    if constexpr (Traits::kStoresDuringQK) {
      gemm_wait<1>(gemms.acc_O);
      store_done(done_softmax);
      first_softmax(acc_S);
    } else {
      first_softmax(acc_S);
      store_done(done_softmax);
    }
    return true;
  }

  // Stores O of the tile before, whose PV has been waited for, while QK^T of this one is in flight.
  CUTE_DEVICE void store_done(TileSoftmax const& done_softmax) {
    gemms.release_V();
    CUTE_NO_UNROLL
    for (; n_skip > 0; --n_skip) {
      gemms.skip_V();
    }
    store(false_type{}, done_softmax);
  }
  CUTE_DEVICE void store_unstored() {
    if (is_unstored) {
      store(true_type{}, rows.softmax);
      is_unstored = false;
    }
  }
  template <class MayBeSplit>
  CUTE_DEVICE void store(MayBeSplit may_be_split, TileSoftmax const& done_softmax) {
    finalise_and_store<Traits, kFeatures>(may_be_split, params, gemms.smem, gemms.warpgroup, done,
                                          first_query(done), done_softmax, gemms.acc_O,
                                          kWarpgroupSync + gemms.warpgroup);
  }

  // Blocks that this warpgroup attends nothing of, but another of the tile does.
  CUTE_DEVICE void skip_blocks() {
    CUTE_NO_UNROLL
    for (; n_skip > 0; --n_skip) {
      gemms.skip_K();
      gemms.skip_V();
    }
  }

  // The tile's first block, from its QK^T in flight to P.
  CUTE_DEVICE void first_softmax(AccS& acc_S) {
    rows.first_to_P(acc_S, tile, first_query(tile), blocks.end - 1, [&] {
      gemm_wait<0>(acc_S);
      gemms.finish_QK(blocks.size() == 1);
    });
    convert_P<typename Traits::Element>(acc_S, gemms.tOrP);
  }

  // P of the block at a place, an operand, without what dropout takes.
  CUTE_DEVICE void drop_P(int place) {
    if constexpr (kFeatures.dropout) {
      drop<Traits>(gemms.tOrP, params, tile, first_query(tile),
                   Schedule::walk(params, tile)[place].number);
    }
  }

  // Rows of V past the end of a packed sequence belong to its neighbour; those of a page hold anything.
  CUTE_DEVICE void clear_tail_of_V(int place) {
    int const n_block = Schedule::walk(params, tile)[place].number;
    int const n_rows = tile.k_rows.length - n_block * kBlockN;
    if ((kFeatures.paged_kv || params.problem.kv().sequences.is_packed()) && n_rows < kBlockN) {
      gemms.clear_rows_of_V(n_rows, kBlockN);
    }
  }
  // Rows of a page hold anything where no query attends them any more, too.
  CUTE_DEVICE void clear_head_of_V(int n_block) {
    if constexpr (kFeatures.paged_kv && kFeatures.left_window) {
      int const n_rows = first_key<kFeatures>(params, tile) - n_block * kBlockN;
      if (n_rows > 0) {
        gemms.clear_rows_of_V(0, n_rows);
      }
    }
  }

  CUTE_DEVICE int first_query(Tile const& tile) const { return tile.first_query + first_row_query; }
};

}  // namespace pyflash::sm90
