// A computing warpgroup: 64 rows of each tile of its CTA. `run` goes through the tiles; what it does to a block is in warpgroup_gemms.h
// (S = Q K^T, O += P V), warpgroup_tile.h (S to P) and finish_tile.h (O on its way out).
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/forward/finish_tile.h"
#include "cute_kernels/sm90/forward/merge_parts.h"
#include "cute_kernels/sm90/forward/problem.h"
#include "cute_kernels/sm90/forward/share_schedule.h"
#include "cute_kernels/sm90/forward/warpgroup_gemms.h"
#include "cute_kernels/sm90/forward/warpgroup_tile.h"
#include "cute_kernels/sm90/gemm.h"

namespace pyflash::sm90 {

using namespace cute;
using device::Site;

template <class Traits, ForwardFeatures kFeatures, class Variant>
struct Consumer {
  using Element = typename Traits::Element;
  using Schedule = ScheduleOf<Traits, kFeatures, Variant>;
  using Gemms = WarpgroupGemms<Traits>;
  using OwnTile = WarpgroupTile<Traits, kFeatures, Variant>;
  using TileSoftmax = typename OwnTile::TileSoftmax;
  using AccS = typename Gemms::AccS;  // (MMA,MMA_M,MMA_N)
  static constexpr int kBlockN = Traits::kBlockN;

  ParamsWith<Variant> const& params;
  Gemms gemms;
  OwnTile now;  // the tile that is computed
  TileOutput<Traits, kFeatures, Variant> const output;
  Schedule schedule;
  Merge merge;  // of parts, in the end

  bool has_P = false;       // of the tile's last block: its PV is left to do
  bool accumulate = false;  // PV onto what is in O
  int n_skip = 0;           // blocks between the last one attended and the next

  Tile done{};               // the tile before
  bool is_unstored = false;  // its O is complete

  // Where a tile has all splits at fixed keys. O of a complete split is to be folded before PV of the next one writes there.
  bool is_folded = false;    // some split of the tile was
  bool was_folded = false;   // of the tile before
  bool is_fold_due = false;  // that of the newest complete split
  TileSoftmax ended;         // of that split

  CUTE_DEVICE Consumer(ParamsWith<Variant> const& params, typename Traits::SharedStorage& smem,
                       int warpgroup)
      : params(params),
        gemms(smem, warpgroup),
        now(params, warpgroup),
        output{params, smem, warpgroup, now.first_row_query},
        schedule(params, smem.share),
        ended(now.softmax) {
    if constexpr (kFeatures.equal_shares) {
      if (params.shares.tag != 0) {
        merge = schedule.merge_of(smem.share);
      }
    }
  }

  CUTE_DEVICE void run() {
    if (gemms.warpgroup + 1 == Traits::kNConsumers) {
      gemms.pass_turn();
    }
    while (true) {
      bool has_begun = false;  // the next tile, whose first P is there
      if (has_P) {
        has_begun = cross_to_next_tile();
      } else {
        next_tile();
      }
      if (!has_begun) {
        if (is_unstored) {
          output.template finalise_and_store<true>(done, now.softmax, gemms.acc_O, was_folded);
          is_unstored = false;
        }
        skip_blocks();
        if (!now.tile.exists) {
          break;
        }
        if (!has_P) {
          pass_tile_without_keys();
          continue;
        }
        AccS acc_S;
        issue_first_QK(acc_S);
        softmax_of_first(acc_S);
      }
      attend_other_blocks();
    }
    if (gemms.warpgroup == 0) {
      gemms.wait_for_turn();  // the last turn that was passed
    }
    if constexpr (kFeatures.equal_shares) {
      if (gemms.warpgroup == 0) {
        merge_parts<Traits, kFeatures>(params, merge, kWarpgroupSync);
      }
    }
  }

 private:
  CUTE_DEVICE void next_tile() {
    now.begin(schedule);
    has_P = now.blocks.size() > 0;
    n_skip += has_P ? now.tile.blocks.end - now.blocks.end : now.tile.blocks.size();
  }

  // PV of a tile's last block while the next tile is found, and QK^T of that one's first block while O is stored. Returns whether
  // it got that far: else O is unstored, and nothing of the next tile is computed.
  CUTE_DEVICE bool cross_to_next_tile() {
    done = now.tile;
    if constexpr (Schedule::kMayFold) {
      was_folded = is_folded;
      is_folded = false;
    }
    TileSoftmax const done_softmax = now.softmax;
    clear_head_of_V();
    gemms.issue_PV(accumulate);
    next_tile();
    // NOTE: further on, V of this tile would be in the way of the blocks that other warpgroups wait for.
    if (!(has_P && n_skip < Traits::kStages && !output.is_split())) {
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
    issue_first_QK(acc_S);
    if constexpr (Traits::kStoresDuringQK) {
      gemm_wait<1>(gemms.acc_O);
      store_done(done_softmax);
      softmax_of_first(acc_S);
    } else {
      softmax_of_first(acc_S);
      store_done(done_softmax);
    }
    return true;
  }
  CUTE_DEVICE void store_done(TileSoftmax const& done_softmax) {
    gemms.release_V();
    CUTE_NO_UNROLL
    for (; n_skip > 0; --n_skip) {
      gemms.skip_V();
    }
    output.template finalise_and_store<false>(done, done_softmax, gemms.acc_O, was_folded);
  }

  CUTE_DEVICE void skip_blocks() {
    CUTE_NO_UNROLL
    for (; n_skip > 0; --n_skip) {
      gemms.skip_K();
      gemms.skip_V();
    }
  }
  CUTE_DEVICE void pass_tile_without_keys() {
    done = now.tile;
    if constexpr (Schedule::kMayFold) {
      was_folded = false;
    }
    clear(gemms.acc_O);
    now.softmax.reset();
    is_unstored = true;
    if (now.tile.blocks.size() > 0) {
      gemms.wait_for_Q();
      gemms.release_Q();
    }
  }

  // The tile's first block: QK^T, and when it is done, P.
  CUTE_DEVICE void issue_first_QK(AccS& acc_S) {
    gemms.wait_for_Q();
    gemms.wait_for_turn();
    gemms.issue_QK(acc_S);
    gemms.pass_turn();
  }
  CUTE_DEVICE void softmax_of_first(AccS& acc_S) {
    int const place = now.first_place();
    now.prepare_softmax();
    now.compute_beside_QK(place);
    gemm_wait<0>(acc_S);
    gemms.finish_QK(now.blocks.size() == 1);
    now.softmax_of_first(acc_S, place);
    convert_P<Element>(acc_S, gemms.tOrP);
  }

  // The mainloop: QK^T of the block before each, beside PV of it. PV of the last one is left to do.
  CUTE_DEVICE void attend_other_blocks() {
    accumulate = false;
    now.drop_P(gemms.tOrP, now.first_place());
    clear_tail_of_V();
    for (int place = now.first_place(); place > now.blocks.begin; --place) {
      AccS acc_S;
      issue_QK_and_PV(acc_S, place);
      gemms.finish_QK(place - 1 == now.blocks.begin);
      if constexpr (Schedule::kMayFold) {
        if (Schedule::ends_split(params, place)) {
          begin_next_split(acc_S, place - 1);
          continue;
        }
      }
      bool const rescale = now.softmax_of_next(acc_S, place - 1);
      finish_PV();
      if (rescale) {
        device::at(Site::O_rescale);
        TileSoftmax::rescale(gemms.acc_O, now.correction);
      }
      convert_P<Element>(acc_S, gemms.tOrP);
      now.drop_P(gemms.tOrP, place - 1);
      accumulate = true;
    }
    if (is_fold_due) {
      fold_due();
    }
    n_skip = now.blocks.begin - now.tile.blocks.begin;
  }

  // PV of the block at a place and QK^T of the one before it. S is complete then; where kOverlap, O is not.
  CUTE_DEVICE void issue_QK_and_PV(AccS& acc_S, int place) {
    gemms.wait_for_turn();
    if constexpr (Traits::kOverlap) {
      gemms.issue_QK(acc_S);
      bool const folds = is_fold_due;  // beside QK^T, and others need not wait for it
      if (folds) {
        gemms.pass_turn();
        fold_due();
      }
      // NOTE: here, since a warp stands at the MMAs of PV until the tensor cores have taken most of those of QK^T.
      now.compute_beside_QK(place - 1);
      gemms.issue_PV(accumulate);
      if (!folds) {
        gemms.pass_turn();
      }
      gemm_wait<1>(acc_S);
    } else {
      if (is_fold_due) {
        fold_due();
      }
      gemms.issue_PV(accumulate);
      gemms.issue_QK(acc_S);
      gemms.pass_turn();
      now.compute_beside_QK(place - 1);
      gemm_wait<1>(gemms.acc_O);
      gemms.release_V();
      gemm_wait<0>(acc_S);
    }
  }
  CUTE_DEVICE void finish_PV() {
    if constexpr (Traits::kOverlap) {
      gemm_wait<0>(gemms.acc_O);
      gemms.release_V();
    }
  }

  // S of the first block of a split, while PV of the split before is computed.
  CUTE_DEVICE void begin_next_split(AccS& acc_S, int place) {
    ended = now.softmax;
    is_fold_due = true;
    now.softmax_of_first(acc_S, place);
    finish_PV();
    convert_P<Element>(acc_S, gemms.tOrP);
    accumulate = false;
  }
  CUTE_DEVICE void fold_due() {
    if constexpr (Schedule::kMayFold) {
      output.template fold<false>(now.tile, ended, gemms.acc_O, is_folded);
      is_folded = true;
      is_fold_due = false;
    }
  }

  // Rows of V past the end of a packed sequence belong to its neighbour; those of a page hold anything, unless they are gathered.
  static constexpr bool kBoxesOfPages = kFeatures.paged_kv && !kFeatures.gathered_kv;
  CUTE_DEVICE void clear_tail_of_V() {
    int const n_block = now.block_at(now.first_place()).number;
    int const n_rows = now.tile.k_rows.length - n_block * kBlockN;
    if ((kBoxesOfPages || params.problem.kv().sequences.is_packed()) && n_rows < kBlockN) {
      gemms.clear_rows_of_V(n_rows, kBlockN);
    }
  }
  // Rows of a page hold anything where no query attends them any more, too.
  CUTE_DEVICE void clear_head_of_V() {
    if constexpr (kBoxesOfPages && kFeatures.left_window) {
      int const n_rows =
          first_key<kFeatures>(params, now.tile) - now.block_at(now.blocks.begin).number * kBlockN;
      if (n_rows > 0) {
        gemms.clear_rows_of_V(0, n_rows);
      }
    }
  }
};

}  // namespace pyflash::sm90
