// A computing warpgroup: 64 rows of the tile.
#pragma once

#include <cute/tensor.hpp>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/params.h"
#include "cute_kernels/sm90/forward/epilogue.h"
#include "cute_kernels/sm90/forward/fold.h"
#include "cute_kernels/sm90/forward/mask.h"
#include "cute_kernels/sm90/forward/merge.h"
#include "cute_kernels/sm90/forward/merge_parts.h"
#include "cute_kernels/sm90/forward/problem.h"
#include "cute_kernels/sm90/forward/rowwise_softmax.h"
#include "cute_kernels/sm90/forward/scores.h"
#include "cute_kernels/sm90/forward/share_schedule.h"
#include "cute_kernels/sm90/forward/softmax.h"
#include "cute_kernels/sm90/forward/traits.h"
#include "cute_kernels/sm90/forward/variant.h"
#include "cute_kernels/sm90/gemm.h"

namespace pyflash::sm90 {

using namespace cute;
using device::Site;

enum NamedBarrier : int { kTurn = 1, kWarpgroupSync = 1 + 4 };  // of each consumer warpgroup

template <class Traits, ForwardFeatures kFeatures, class Variant>
CUTE_DEVICE void compute_tiles(ParamsWith<Variant> const& params,
                               typename Traits::SharedStorage& smem, int warpgroup) {
  using Element = typename Traits::Element;
  using Schedule = ScheduleOf<Traits, kFeatures, Variant>;
  // A variant's scores are scaled and capped before the softmax gets them.
  constexpr bool kSoftcap = kFeatures.softcap && !Variant::kHasScore;
  constexpr int kBlockN = Traits::kBlockN;
  constexpr int kMmaM = Traits::kMmaM;
  constexpr int kHeadDim = Traits::kHeadDim;
  constexpr int kNConsumers = Traits::kNConsumers;

  auto const& problem = params.problem;
  int const tidx = device::thread_idx() % kWarpgroup;
  int const first_row_query = warpgroup * Schedule::queries_per_warpgroup(params);

  // MMA operands; those in shared memory are descriptors.
  typename Traits::MmaQK mma_QK;
  typename Traits::MmaPV mma_PV;
  Tensor tSrQ = descriptors<typename Traits::OperandQ>(smem.q + warpgroup * kMmaM *
                                                                    kHeadDim);  // (MMA,MMA_M,MMA_K)
  Tensor tSrK = descriptors<typename Traits::OperandK>(smem.k);  // (MMA,MMA_N,MMA_K,kStages)
  Tensor tOrV = descriptors<typename Traits::OperandV>(smem.v);  // (MMA,MMA_N,MMA_K,kStages)
  Tensor tOrP = make_tensor<Element>(FragmentA<kBlockN>{});      // (MMA,MMA_M,MMA_K)
  using AccS = Accumulator<kBlockN>;                             // (MMA,MMA_M,MMA_N)
  Tensor acc_O = make_tensor<float>(Accumulator<kHeadDim>{});
  // Where this thread's scores are. NOTE: with four consumers and no right window to keep that would take the registers of two
  // of four chains of maxima.
  constexpr bool kKeepsCoords = kNConsumers < 4 || kFeatures.right_window;
  Tensor tScS = coords_of<kBlockN>(tidx);
  auto coords_S = [&] {
    if constexpr (kKeepsCoords) {
      return tScS;
    } else {
      return coords_of<kBlockN>(device::fresh_thread_idx() % kWarpgroup);
    }
  };
  Tensor sV = make_tensor(make_smem_ptr(smem.v),
                          typename Traits::SmemLayoutKV{});  // (kBlockN,kHeadDim,kStages)

  using TileMask = ScoreMask<Traits, kFeatures>;
  // NOTE: under a cap rows decide alone while scores are compared with m.
  constexpr bool kRowsDecide = Traits::kRowsDecide && !kSoftcap;
  using TileSoftmax = std::conditional_t<
      kRowsDecide, RowwiseSoftmax<Element>,
      Softmax<Element, Traits::kRescaleThreshold && !Traits::kRowsDecide, kSoftcap>>;
  typename TileSoftmax::PerRow correction;

  RingPosition<1> read_Q;
  RingPosition<Traits::kStages> read_K;
  RingPosition<Traits::kStages> read_V;
  auto& pipeline_Q = smem.pipeline_Q[warpgroup];

  // Warpgroups take turns to issue MMAs, so that the softmax of one runs during the MMAs of another.
  auto wait_for_turn = [&] {
    if constexpr (Traits::kPingpong) {
      device::named_barrier_sync(kTurn + warpgroup, 2 * kWarpgroup);
    }
  };
  auto pass_turn = [&](int from) {
    if constexpr (Traits::kPingpong) {
      int const next = from + 1 == kNConsumers ? 0 : from + 1;
      device::named_barrier_arrive(kTurn + next, 2 * kWarpgroup);
    }
  };

  // may_be_split: false where the kernel was launched without splits.
  bool const is_split = !kFeatures.equal_shares && problem.num_splits > 1;
  // Where a tile has all splits at fixed keys: takes in the one that O and `softmax` are of, and where it is the last, stores.
  bool is_folded = false;   // some split of the tile was
  bool was_folded = false;  // of the tile before
  auto fold = [&](auto closes, Tile const& tile, TileSoftmax const& softmax, auto& O,
                  bool goes_on) {
    Tensor tOcO = coords_of<kHeadDim>(device::fresh_thread_idx() % kWarpgroup);
    int const first_query = tile.first_query + first_row_query;
    typename TileSoftmax::PerRow sinks;
    fill(sinks, -INFINITY);
    auto lse = softmax.template finalise<true>(O, sinks, problem.softcap);
    if constexpr (kFeatures.sinks && closes.value) {
      if (problem.sinks.data != nullptr) {
        load_sinks<Traits>(params, tile, first_query, tOcO, sinks);
      }
    }
    fold_split<Traits, closes.value, kFeatures.sinks>(smem, warpgroup, goes_on, O, lse, sinks);
    if constexpr (closes.value) {
      store_lse<Traits, kFeatures>(params, tile, first_query, lse, tOcO);
      store_O<Traits, kFeatures>(params, tile, first_query, O, smem.epilogue(warpgroup));
    }
  };
  auto finalise_and_store = [&](auto may_be_split, Tile const& tile, TileSoftmax const& softmax,
                                auto& O) {
    device::at(Site::O_rescale);
    Tensor tOcO = coords_of<kHeadDim>(device::fresh_thread_idx() % kWarpgroup);
    int const first_query = tile.first_query + first_row_query;
    typename TileSoftmax::PerRow sinks;
    fill(sinks, -INFINITY);
    bool const is_part = kFeatures.equal_shares && tile.split != Tile::kWhole;
    if constexpr (Schedule::kMayFold) {
      if (Schedule::folds(params)) {
        fold(true_type{}, tile, softmax, O, was_folded);
        return;
      }
    }
    if constexpr (kFeatures.sinks) {
      if (problem.sinks.data != nullptr && !is_split &&
          !is_part) {  // else they join when the splits are merged
        load_sinks<Traits>(params, tile, first_query, tOcO, sinks);
      }
    }
    auto const lse = softmax.template finalise<kFeatures.fixed_splits>(O, sinks, problem.softcap);
    if constexpr (kFeatures.dropout) {
      CUTE_UNROLL
      for (int i = 0; i < size(O); ++i) {
        O(i) *= params.dropout.factor;
      }
    }
    if (is_part) {
      store_part<Traits, kFeatures>(params, tile, first_query, O, lse, tOcO);
    } else if (may_be_split.value && is_split) {
      if constexpr (Traits::kMaxCluster > 1) {
        if (problem.cluster > 1) {
          merge_in_cluster<Traits, kFeatures>(params, tile, O, lse, tOcO,
                                              reinterpret_cast<float*>(smem.k),
                                              kWarpgroupSync + warpgroup);
          return;
        }
      }
      store_partial<Traits, kFeatures>(params, tile, first_query, O, lse, tOcO);
    } else {
      store_lse<Traits, kFeatures>(params, tile, first_query, lse, tOcO);
      store_O<Traits, kFeatures>(params, tile, first_query, O, smem.epilogue(warpgroup));
    }
  };
  // Rows [begin, end) of the block of V that is next to be read become 0. P is 0 there, but 0 * NaN is not.
  auto clear_rows_of_V = [&](int begin, int end) {
    device::at(Site::V_r2s);
    smem.pipeline_V.wait(read_V);
    constexpr int kVector = 8;
    CUTE_NO_UNROLL
    for (int i = device::fresh_thread_idx() % kWarpgroup; i < (end - begin) * (kHeadDim / kVector);
         i += kWarpgroup) {
      int const row = begin + i / (kHeadDim / kVector);
      int const column = i % (kHeadDim / kVector) * kVector;
      device::store(reinterpret_cast<uint4*>(raw_pointer_cast(&sV(row, column, read_V.stage))),
                    uint4{});
    }
    device::fence_async_proxy();
    device::named_barrier_sync(kWarpgroupSync + warpgroup, kWarpgroup);  // the zeros are visible
  };
  // Rows of V past the end of a packed sequence belong to its neighbour; those of a page hold anything, unless they are gathered.
  constexpr bool kBoxesOfPages = kFeatures.paged_kv && !kFeatures.gathered_kv;
  auto clear_tail_of_V = [&](Tile const& tile, int place) {
    int const n_block = Schedule::walk(params, tile)[place].number;
    int const n_rows = tile.k_rows.length - n_block * kBlockN;
    if ((kBoxesOfPages || problem.kv().sequences.is_packed()) && n_rows < kBlockN) {
      clear_rows_of_V(n_rows, kBlockN);
    }
  };
  // Rows of a page hold anything where no query attends them any more, too.
  auto clear_head_of_V = [&](Tile const& tile, int n_block) {
    if constexpr (kBoxesOfPages && kFeatures.left_window) {
      int const n_rows = first_key<kFeatures>(params, tile) - n_block * kBlockN;
      if (n_rows > 0) {
        clear_rows_of_V(0, n_rows);
      }
    }
  };

  auto issue_QK = [&](auto& acc_S) {
    device::at(Site::QK);
    smem.pipeline_K.wait(read_K);
    gemm_async(mma_QK, tSrQ, tSrK(_, _, _, read_K.stage), acc_S, false);
  };
  auto issue_PV = [&](bool accumulate) {
    device::at(Site::PV);
    smem.pipeline_V.wait(read_V);
    gemm_async(mma_PV, tOrP, tOrV(_, _, _, read_V.stage), acc_O, accumulate);
  };
  auto release_K = [&] {
    smem.pipeline_K.release(read_K);
    read_K.advance();
  };
  auto release_V = [&] {
    smem.pipeline_V.release(read_V);
    read_V.advance();
  };
  auto release_Q = [&] {
    pipeline_Q.release(read_Q);
    read_Q.advance();
  };
  // After a QK^T, which may be the tile's last.
  auto finish_QK = [&](bool last) {
    release_K();
    if (last) {
      release_Q();
    }
  };
  // Blocks that this warpgroup attends nothing of, but another of the tile does.
  auto skip_K = [&] {
    smem.pipeline_K.wait(read_K);
    wait_for_turn();
    pass_turn(warpgroup);
    release_K();
  };
  auto skip_V = [&] {
    smem.pipeline_V.wait(read_V);
    release_V();
  };

  Schedule schedule(params, smem.share);
  Merge merge;  // of parts, in the end
  if constexpr (kFeatures.equal_shares) {
    if (params.shares.tag != 0) {
      merge = schedule.merge_of(smem.share);
    }
  }
  Tile tile{};

  // What a variant reads for the scores of the block at a place, while what is before it is computed.
  constexpr bool kHasStreams = variant::kStreamCount<Variant> > 0;
  constexpr bool kTakesBits = variant::kTakesBits<Variant>;
  constexpr bool kTakesSpans = variant::kTakesSpans<Variant>;
  constexpr bool kReadsAhead = kHasStreams || kTakesBits;
  int first_place = 0;  // of the tile, with such a variant
  auto blocks_ahead = [&] {
    if constexpr (kTakesBits) {
      return BlocksAhead<Traits, Variant>(params);
    } else {
      return NoBlocksAhead{};
    }
  }();
  Interval whole{};  // places of blocks that a mask is known to show all of
  // The block at a place whose scores are made next, under a mask.
  auto block_at = [&](int place) __attribute__((always_inline)) {
    if constexpr (kTakesBits) {
      return blocks_ahead.next();
    } else if constexpr (kTakesSpans) {
      if (whole.begin <= place && place < whole.end) {
        return variant::ListedBlock{place, false};
      }
    }
    return variant::ListedBlock{Schedule::walk(params, tile)[place]};
  };
  auto read_ahead = [&](auto place) __attribute__((always_inline)) {
    if constexpr (kTakesBits) {
      blocks_ahead.advance(place);
    }
    if constexpr (kHasStreams) {
      if (place >= first_place) {
        auto const block = kTakesSpans ? block_at(place) : Schedule::walk(params, tile)[place];
        copy_streams<Traits, kFeatures, Variant>(params, tile, tile.first_query + first_row_query,
                                                 block);
      }
    }
  };

  // S of the block at a place to P, in place. Returns whether O is to be rescaled.
  // NOTE: called from more than one place, it would not always be inlined.
  auto softmax_block = [&](auto first, auto& acc_S, TileSoftmax& softmax, TileMask& mask,
                           int place) __attribute__((always_inline)) {
    auto const walk = Schedule::walk(params, tile);
    auto [n_block, is_cut] = walk[place];
    if constexpr (Variant::kHasMask) {
      variant::ListedBlock const block = block_at(place);
      n_block = block.number;
      is_cut = block.is_cut;
    }
    auto make_scores = [&](auto ahead) {
      int const first_query = tile.first_query + first_row_query;
      if constexpr (kTakesBits) {
        sm90::make_scores<Traits, kFeatures, Variant, ahead.value>(acc_S, params, tile, first_query,
                                                                   n_block, is_cut, blocks_ahead);
      } else {
        sm90::make_scores<Traits, kFeatures, Variant, ahead.value>(acc_S, params, tile, first_query,
                                                                   n_block, is_cut);
      }
    };
    make_scores(true_type{});
    if constexpr (kReadsAhead) {
      read_ahead(place - 1);
    }
    device::at(Site::softmax);
    if constexpr (TileSoftmax::kSumsTell && !first.value) {
      if (!mask.cuts(n_block) && (Variant::kHasMask || !is_cut)) {
        typename TileSoftmax::PerRow const sums =
            softmax.exponentiate_with_m(acc_S, problem.softcap);
        if (!softmax.are_large(sums)) {
          softmax.add(sums);
          return false;
        }
        if (!softmax.overflow(sums)) {
          softmax.grow(acc_S, sums, correction);
          return true;
        }
        compute_scores<Traits, kFeatures>(params, tile, tile.first_query + first_row_query, n_block,
                                          acc_S);
        make_scores(false_type{});
        device::at(Site::softmax);
        mask.cut_all();  // of the tile's blocks none is to take that long again
      }
      mask.apply(acc_S, n_block);
      bool const rescale = softmax.template update<false, true>(acc_S, correction, problem.softcap);
      if (softmax.lacks_maximum()) {
        mask.also_cut(walk[place - 1].number);
      }
      return rescale;
    }
    // With a right window the first block is nearly always cut.
    if (mask.cuts(n_block) || is_cut || (first.value && kFeatures.right_window)) {
      mask.apply(acc_S, n_block);
      return softmax.template update<first.value, true>(acc_S, correction, problem.softcap);
    }
    // NOTE: were they one, the compiler would move the wait for PV that follows above the exponentials.
    return softmax.template update<first.value, false>(acc_S, correction, problem.softcap);
  };

  // The same of a block after the first, where rows decide alone.
  auto softmax_rows = [&](auto& acc_S, auto& softmax, TileMask& mask, int place) {
    auto const walk = Schedule::walk(params, tile);
    auto [n_block, is_cut] = walk[place];
    if constexpr (Variant::kHasMask) {
      variant::ListedBlock const block = block_at(place);
      n_block = block.number;
      is_cut = block.is_cut;
    }
    auto make_scores = [&](auto ahead) {
      int const first_query = tile.first_query + first_row_query;
      if constexpr (kTakesBits) {
        sm90::make_scores<Traits, kFeatures, Variant, ahead.value>(acc_S, params, tile, first_query,
                                                                   n_block, is_cut, blocks_ahead);
      } else {
        sm90::make_scores<Traits, kFeatures, Variant, ahead.value>(acc_S, params, tile, first_query,
                                                                   n_block, is_cut);
      }
      device::at(Site::softmax);
    };
    make_scores(true_type{});
    if constexpr (kReadsAhead) {
      read_ahead(place - 1);
    }
    bool const is_masked = mask.cuts(n_block) || is_cut;
    bool const rescale = softmax_by_rows(softmax, acc_S, correction, mask, n_block, is_masked, [&] {
      compute_scores<Traits, kFeatures>(params, tile, tile.first_query + first_row_query, n_block,
                                        acc_S);
      make_scores(false_type{});
    });
    if (is_masked && softmax.lacks_maximum()) {
      mask.also_cut(walk[place - 1].number);
    }
    return rescale;
  };

  // Dropout draws while S is computed, once other warpgroups may issue MMAs: else they would wait for this, too.
  // NOTE: wide heads have no registers for it, nor have scores with a cap or slopes; they draw when P is there.
  constexpr bool kDrawsBesideQK =
      kFeatures.dropout && kHeadDim <= 128 && !kSoftcap && !kFeatures.alibi_slopes;
  auto dropout = [] {
    if constexpr (kFeatures.dropout) {
      return DropoutOfOperand<kBlockN>{};
    } else {
      return nullptr;
    }
  }();
  auto begin_dropout = [&] {
    if constexpr (kFeatures.dropout) {
      dropout = dropout_of<Traits>(params, tile, tile.first_query + first_row_query);
    }
  };
  auto draw_dropout = [&](int place) {
    if constexpr (kFeatures.dropout) {
      dropout.draw(params.dropout, Schedule::walk(params, tile)[place].number);
    }
  };
  auto draw_beside_QK = [&](int place) {
    if constexpr (kDrawsBesideQK) {
      draw_dropout(place);
    }
  };
  auto drop_P = [&](int place) {
    if constexpr (kFeatures.dropout) {
      if constexpr (!kDrawsBesideQK) {
        begin_dropout();
        draw_dropout(place);
      }
      dropout.apply(params.dropout, recast<uint32_t>(tOrP));
    }
  };

  Interval blocks{};  // of the tile, that this warpgroup attends something of
  TileMask mask;
  TileSoftmax softmax(Variant::kHasScore ? 1.f : problem.softmax_scale,
                      Variant::kHasScore ? kLn2 : problem.inverse_scale_log2);
  bool has_P = false;       // of the tile's last block: its PV is left to do
  bool accumulate = false;  // PV onto what is in O
  int n_skip = 0;           // blocks between the last one attended and the next
  auto next_tile = [&] {
    tile = schedule.next();
    if constexpr (kTakesSpans) {
      blocks = schedule.blocks_of_warpgroup(tile, warpgroup, whole);
    } else {
      blocks = schedule.blocks_of_warpgroup(tile, warpgroup);
    }
    has_P = blocks.size() > 0;
    n_skip += has_P ? tile.blocks.end - blocks.end : tile.blocks.size();
    mask = TileMask(params, tile, tile.first_query + first_row_query, coords_S());
    if constexpr (kTakesBits) {
      blocks_ahead.begin(tile, warpgroup, blocks);
    }
    if constexpr (kReadsAhead) {
      first_place = blocks.begin;
      read_ahead(blocks.end - 1);
    }
    if constexpr (kDrawsBesideQK) {
      if (has_P) {
        begin_dropout();
      }
    }
  };
  // Else the bits of the others would depend on what these hold.
  auto leave_out_missing_rows = [&] {
    if constexpr (Traits::kRescaleThreshold || kSoftcap) {
      Tensor by_rows = rows_by_columns(coords_S());  // ((2,MMA_M),(2,V,MMA_N)) of (row, column)
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        PackedRow const row = unpack_row<Traits>(params, get<0>(by_rows(r, 0)));
        if (!row_exists<Traits, kFeatures>(params, tile, tile.first_query + first_row_query, row)) {
          softmax.leave_out(r);
        }
      }
    }
  };
  // The tile's first block, from its QK^T in flight to P.
  auto first_softmax = [&](auto& acc_S) {
    if constexpr (kSoftcap) {
      softmax.reset();
      leave_out_missing_rows();
    }
    draw_beside_QK(blocks.end - 1);
    gemm_wait<0>(acc_S);
    finish_QK(blocks.size() == 1);
    softmax_block(true_type{}, acc_S, softmax, mask, blocks.end - 1);
    // NOTE: without a cap each row masks its own first block, and there are too few registers for m before it.
    if constexpr (!kSoftcap) {
      leave_out_missing_rows();
    }
    if constexpr (TileSoftmax::kSumsTell) {
      if (softmax.lacks_maximum()) {
        mask.also_cut(Schedule::walk(params, tile)[blocks.end - 2].number);
      }
    }
    convert_P<Element>(acc_S, tOrP);
  };
  // A split of the tile is complete, and its O is to be folded before PV of the next split writes there.
  bool is_fold_due = false;
  TileSoftmax ended = softmax;
  auto fold_due = [&] {
    if constexpr (Schedule::kMayFold) {
      fold(false_type{}, tile, ended, acc_O, is_folded);
      is_folded = true;
      is_fold_due = false;
    }
  };
  if (warpgroup + 1 == kNConsumers) {
    pass_turn(warpgroup);
  }
  Tile done{};               // the tile before
  bool is_unstored = false;  // its O is complete
  while (true) {
    bool is_first_pending = true;
    if (has_P) {
      // Between tiles: PV of the last block while the next tile is found, and QK^T of that one's first block while O is
      // stored.
      done = tile;
      if constexpr (Schedule::kMayFold) {
        was_folded = is_folded;
        is_folded = false;
      }
      TileSoftmax const done_softmax = softmax;
      clear_head_of_V(tile, blocks.begin);
      issue_PV(accumulate);
      next_tile();
      // NOTE: further on, V of this tile would be in the way of the blocks that other warpgroups wait for.
      if (has_P && n_skip < Traits::kStages && !is_split) {
        Tensor acc_S = make_tensor<float>(AccS{});
        CUTE_NO_UNROLL
        for (int i = 0; i < n_skip; ++i) {
          skip_K();
        }
        pipeline_Q.wait(read_Q);
        wait_for_turn();
        issue_QK(acc_S);
        pass_turn(warpgroup);
        auto store_done = [&] {
          release_V();
          CUTE_NO_UNROLL
          for (; n_skip > 0; --n_skip) {
            skip_V();
          }
          finalise_and_store(false_type{}, done, done_softmax, acc_O);
        };
        if constexpr (Traits::kStoresDuringQK) {
          gemm_wait<1>(acc_O);
          store_done();
          first_softmax(acc_S);
        } else {
          first_softmax(acc_S);
          store_done();
        }
        is_first_pending = false;
      } else {
        gemm_wait<0>(acc_O);
        release_V();
        is_unstored = true;
      }
    } else {
      next_tile();
    }
    if (is_first_pending) {
      if (is_unstored) {
        finalise_and_store(true_type{}, done, softmax, acc_O);
        is_unstored = false;
      }
      CUTE_NO_UNROLL
      for (; n_skip > 0; --n_skip) {
        skip_K();
        skip_V();
      }
      if (!tile.exists) {
        break;
      }
      if (!has_P) {
        done = tile;
        if constexpr (Schedule::kMayFold) {
          was_folded = false;
        }
        clear(acc_O);
        softmax.reset();
        is_unstored = true;
        if (tile.blocks.size() > 0) {
          pipeline_Q.wait(read_Q);
          release_Q();
        }
        continue;
      }
      Tensor acc_S = make_tensor<float>(AccS{});
      pipeline_Q.wait(read_Q);
      wait_for_turn();
      issue_QK(acc_S);
      pass_turn(warpgroup);
      first_softmax(acc_S);
    }

    // Mainloop: QK^T of block n_block - 1 beside PV of block n_block.
    accumulate = false;
    drop_P(blocks.end - 1);
    clear_tail_of_V(tile, blocks.end - 1);
    for (int n_block = blocks.end - 1; n_block > blocks.begin; --n_block) {
      Tensor acc_S = make_tensor<float>(AccS{});
      wait_for_turn();
      if constexpr (Traits::kOverlap) {
        issue_QK(acc_S);
        bool const folds = is_fold_due;  // beside QK^T, and others need not wait for it
        if (folds) {
          pass_turn(warpgroup);
          fold_due();
        }
        issue_PV(accumulate);
        if (!folds) {
          pass_turn(warpgroup);
        }
        draw_beside_QK(n_block - 1);
        gemm_wait<1>(acc_S);
      } else {
        if (is_fold_due) {
          fold_due();
        }
        issue_PV(accumulate);
        issue_QK(acc_S);
        pass_turn(warpgroup);
        draw_beside_QK(n_block - 1);
        gemm_wait<1>(acc_O);
        release_V();
        gemm_wait<0>(acc_S);
      }
      finish_QK(n_block - 1 == blocks.begin);
      if constexpr (Schedule::kMayFold) {
        if (Schedule::ends_split(params, n_block)) {
          ended = softmax;
          is_fold_due = true;
          softmax_block(true_type{}, acc_S, softmax, mask, n_block - 1);
          leave_out_missing_rows();
          if constexpr (TileSoftmax::kSumsTell) {
            if (softmax.lacks_maximum()) {
              mask.also_cut(Schedule::walk(params, tile)[n_block - 2].number);
            }
          }
          if constexpr (Traits::kOverlap) {
            gemm_wait<0>(acc_O);
            release_V();
          }
          convert_P<Element>(acc_S, tOrP);
          accumulate = false;
          continue;
        }
      }
      bool rescale;
      if constexpr (kRowsDecide) {
        rescale = softmax_rows(acc_S, softmax, mask, n_block - 1);
      } else {
        rescale = softmax_block(false_type{}, acc_S, softmax, mask, n_block - 1);
      }
      if constexpr (Traits::kOverlap) {
        gemm_wait<0>(acc_O);
        release_V();
      }
      if (rescale) {
        device::at(Site::O_rescale);
        TileSoftmax::rescale(acc_O, correction);
      }
      convert_P<Element>(acc_S, tOrP);
      drop_P(n_block - 1);
      accumulate = true;
    }
    if (is_fold_due) {
      fold_due();
    }
    n_skip = blocks.begin - tile.blocks.begin;
  }
  if (warpgroup == 0) {
    wait_for_turn();  // the last turn that was passed
  }
  if constexpr (kFeatures.equal_shares) {
    if (warpgroup == 0) {
      merge_parts<Traits, kFeatures>(params, merge, kWarpgroupSync);
    }
  }
}

}  // namespace pyflash::sm90
