// A tile as a computing warpgroup has it: 64 rows of Q, the blocks of keys that they attend, and what becomes of S of a block until it
// is P.
#pragma once

#include <type_traits>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/dropout.h"
#include "cute_kernels/features.h"
#include "cute_kernels/row_softmax.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/forward/mask.h"
#include "cute_kernels/sm90/forward/mask_bits.h"
#include "cute_kernels/sm90/forward/own_bits.h"
#include "cute_kernels/sm90/forward/problem.h"
#include "cute_kernels/sm90/forward/rowwise_softmax.h"
#include "cute_kernels/sm90/forward/scores.h"
#include "cute_kernels/sm90/forward/share_schedule.h"
#include "cute_kernels/sm90/forward/softmax.h"
#include "cute_kernels/sm90/forward/usual_scores.h"
#include "cute_kernels/sm90/forward/variant.h"
#include "cute_kernels/sm90/gemm.h"

namespace pyflash::sm90 {

using namespace cute;
using device::Site;

template <class Traits, ForwardFeatures kFeatures, class Variant>
struct WarpgroupTile {
  using Element = typename Traits::Element;
  using Schedule = ScheduleOf<Traits, kFeatures, Variant>;
  using ListedBlock = variant::ListedBlock;
  static constexpr int kBlockN = Traits::kBlockN;
  // A variant's scores are scaled and capped before the softmax gets them.
  static constexpr bool kSoftcap = kFeatures.softcap && !Variant::kHasScore;
  // NOTE: under a cap rows decide alone while scores are compared with m.
  static constexpr bool kRowsDecide = Traits::kRowsDecide && !kSoftcap;
  using TileSoftmax = std::conditional_t<
      kRowsDecide, RowwiseSoftmax<Element>,
      Softmax<Element, Traits::kRescaleThreshold && !Traits::kRowsDecide, kSoftcap>>;
  using PerRow = typename TileSoftmax::PerRow;
  // What a variant reads for the scores of a block, while what is before it is computed.
  static constexpr bool kHasStreams = variant::kStreamCount<Variant> > 0;
  static constexpr bool kTakesBits = variant::kTakesBits<Variant>;
  static constexpr bool kTakesSpans = variant::kTakesSpans<Variant>;
  static constexpr bool kMakesBits = makes_bits<Traits, Variant>();
  using Ahead =
      std::conditional_t<kTakesBits, BlocksAhead<Traits, Variant>,
                         std::conditional_t<kMakesBits, OwnBits<Traits, Variant>, NoBlocksAhead>>;
  // Whether a row without a maximum is known not to be shown anything of a block.
  static constexpr bool kKnowsShown = kMakesBits && !kRowsDecide;
  using Usual = UsualScoresOf<Traits, kFeatures, Variant>;
  static constexpr bool kMostAreUsual = Usual::kExists && TileSoftmax::kSumsTell && !kRowsDecide;
  // Dropout draws while S is computed.
  // NOTE: wide heads have no registers for it, nor have scores with a cap or slopes; they draw when P is there.
  static constexpr bool kDrawsBesideQK =
      kFeatures.dropout && Traits::kHeadDim <= 128 && !kSoftcap && !kFeatures.alibi_slopes;
  using Dropped = std::conditional_t<kFeatures.dropout, DropoutOfOperand<kBlockN>, Nothing>;
  using Coords = decltype(coords_of<kBlockN>(0));  // (MMA,MMA_M,MMA_N)
  // Where this thread's scores are. NOTE: four consumers have no registers to keep it.
  static constexpr bool kKeepsCoords = Traits::kNConsumers < 4;

  ParamsWith<Variant> const& params;
  int const warpgroup;
  int const first_row_query;  // of the warpgroup, from the tile's first query
  Coords const tScS;

  Tile tile{};
  Interval blocks{};  // of the tile, that this warpgroup attends something of, by their places
  Interval whole{};   // places of blocks that a mask is known to show all of
  ScoreMask<Traits, kFeatures> mask;
  TileSoftmax softmax;
  PerRow correction;  // of O, after a block
  Ahead ahead;
  Usual usual;
  Dropped dropped;

  CUTE_DEVICE WarpgroupTile(ParamsWith<Variant> const& params, int warpgroup)
      : params(params),
        warpgroup(warpgroup),
        first_row_query(warpgroup * Schedule::queries_per_warpgroup(params)),
        tScS(coords_of<kBlockN>(device::thread_idx() % kWarpgroup)),
        softmax(Variant::kHasScore ? 1.f : params.problem.softmax_scale,
                Variant::kHasScore ? kLn2 : params.problem.inverse_scale_log2),
        ahead(params),
        usual(params) {}

  CUTE_DEVICE int first_query() const { return tile.first_query + first_row_query; }
  CUTE_DEVICE int first_place() const { return blocks.end - 1; }  // of the first block
  CUTE_DEVICE ListedBlock block_at(int place) const {
    return {Schedule::walk(params, tile)[place]};
  }

  // Goes on with another tile, of which nothing is computed yet.
  CUTE_DEVICE void begin(Schedule& schedule) {
    tile = schedule.next();
    if constexpr (kTakesSpans) {
      blocks = schedule.blocks_of_warpgroup(tile, warpgroup, whole);
    } else {
      blocks = schedule.blocks_of_warpgroup(tile, warpgroup);
    }
    mask = ScoreMask<Traits, kFeatures>(params, tile, first_query(), coords_S());
    if constexpr (kMostAreUsual) {
      if (blocks.size() > 0) {
        usual.begin(tile, first_query());
      }
    }
    if constexpr (kTakesBits) {
      ahead.begin(tile, warpgroup, blocks);
    }
    if constexpr (kMakesBits) {
      ahead.begin(tile, first_query());
      if (blocks.size() > 0) {
        load_keys_of(first_place());
      }
    }
    read_ahead(blocks.end - 1);
    if constexpr (kDrawsBesideQK) {
      if (blocks.size() > 0) {
        begin_dropout();
      }
    }
  }

  // Before S of the first block is there.
  CUTE_DEVICE void prepare_softmax() {
    if constexpr (kSoftcap) {
      softmax.reset();
      leave_out_missing_rows();
    }
  }

  // The first block of the tile, or of a split of it: S to P, in place.
  CUTE_DEVICE void softmax_of_first(auto& acc_S, int place) {
    ListedBlock const block = take_scores(acc_S, place);
    // With a right window the first block is nearly always cut.
    if (mask.cuts(block.number) || block.is_cut || kFeatures.right_window) {
      mask.apply(acc_S, block.number);
      softmax.template update<true, true>(acc_S, correction, params.problem.softcap);
    } else {
      softmax.template update<true, false>(acc_S, correction, params.problem.softcap);
    }
    // NOTE: without a cap each row masks its own first block, and there are too few registers for m before it.
    if constexpr (!kSoftcap) {
      leave_out_missing_rows();
    }
    if constexpr (TileSoftmax::kSumsTell) {
      compare_next_if_needed(place);
    }
  }

  // A later one: S to P, in place. Returns whether O is to be rescaled, by `correction`.
  CUTE_DEVICE bool softmax_of_next(auto& acc_S, int place) {
    if constexpr (kMostAreUsual) {
      return softmax_where_most_are_usual(acc_S, place);
    }
    if constexpr (kKnowsShown && TileSoftmax::kSumsTell) {
      return softmax_where_bits_are_made(acc_S, place);
    }
    ListedBlock const block = take_scores(acc_S, place);
    if constexpr (kRowsDecide) {
      return softmax_where_rows_decide(acc_S, block, place);
    } else if constexpr (TileSoftmax::kSumsTell) {
      return softmax_where_sums_tell(acc_S, block, place);
    } else {
      if (mask.cuts(block.number) || block.is_cut) {
        mask.apply(acc_S, block.number);
        return softmax.template update<false, true>(acc_S, correction, params.problem.softcap);
      }
      // NOTE: were they one, the compiler would move the wait for PV that follows above the exponentials.
      return softmax.template update<false, false>(acc_S, correction, params.problem.softcap);
    }
  }

  // What is computed of the block at a place beside its QK^T: its dropout, and the bits of what is hidden of it.
  CUTE_DEVICE void compute_beside_QK(int place) {
    if constexpr (kDrawsBesideQK) {
      draw_dropout(place);
    }
    if constexpr (kMakesBits) {
      find_block(place);
    }
  }
  CUTE_DEVICE void drop_P(auto& tOrP, int place) {
    if constexpr (kFeatures.dropout) {
      if constexpr (!kDrawsBesideQK) {
        begin_dropout();
        draw_dropout(place);
      }
      dropped.apply(params.dropout, recast<uint32_t>(tOrP));
    }
  }

 private:
  CUTE_DEVICE auto coords_S() const {
    if constexpr (kKeepsCoords) {
      return tScS;
    } else {
      return coords_of<kBlockN>(device::fresh_thread_idx() % kWarpgroup);
    }
  }

  CUTE_DEVICE void read_ahead(int place) {
    if constexpr (kTakesBits) {
      ahead.advance(place);
    }
    if constexpr (kHasStreams) {
      if (place >= blocks.begin) {
        copy_streams<Traits, kFeatures, Variant>(params, tile, first_query(),
                                                 kTakesSpans ? next_block(place) : block_at(place));
      }
    }
  }
  // The block at a place whose scores are made next.
  CUTE_DEVICE ListedBlock next_block(int place) const {
    if constexpr (kTakesBits || kMakesBits) {
      return ahead.next();
    } else if constexpr (kTakesSpans) {
      return block_of_span(place);
    }
    return block_at(place);
  }
  CUTE_DEVICE ListedBlock block_of_span(int place) const {
    if (is_whole(place)) {
      return {place, false};
    }
    return block_at(place);
  }
  CUTE_DEVICE bool is_whole(int place) const { return whole.begin <= place && place < whole.end; }

  // QK^T of the block at a place to what the softmax takes; what the next block needs is on its way then.
  CUTE_DEVICE ListedBlock take_scores(auto& acc_S, int place) {
    ListedBlock const block = next_block(place);
    make_scores<true>(acc_S, block);
    read_ahead(place - 1);
    device::at(Site::softmax);
    return block;
  }
  // Once more, where what it was is lost.
  CUTE_DEVICE void compute_again(auto& acc_S, ListedBlock const& block) {
    compute_scores<Traits, kFeatures>(params, tile, first_query(), block.number, acc_S);
    make_scores<false>(acc_S, block);
    device::at(Site::softmax);
  }
  template <bool kAhead>
  CUTE_DEVICE void make_scores(auto& acc_S, ListedBlock const& block) {
    sm90::make_scores<Traits, kFeatures, Variant, kAhead>(acc_S, params, tile, first_query(),
                                                          block.number, block.is_cut, ahead);
  }

  CUTE_DEVICE bool softmax_where_rows_decide(auto& acc_S, ListedBlock const& block, int place) {
    bool const is_masked = mask.cuts(block.number) || block.is_cut;
    bool const rescale = softmax_by_rows(softmax, acc_S, correction, mask, block.number, is_masked,
                                         [&] { compute_again(acc_S, block); });
    if (is_masked) {
      compare_next_if_needed(place);
    }
    return rescale;
  }

  CUTE_DEVICE bool softmax_where_sums_tell(auto& acc_S, ListedBlock const& block, int place) {
    return softmax_by_sums(acc_S, block, place,
                           mask.cuts(block.number) || (!Variant::kHasMask && block.is_cut));
  }
  // The same of scores that a mask is known to hide, or to show all of.
  CUTE_DEVICE bool softmax_where_bits_are_made(auto& acc_S, int place) {
    ListedBlock const block = next_block(place);
    bool compares = mask.cuts(block.number);
    if (block.is_cut) {
      ahead.bits.hide(acc_S);
      compares = compares || shows_rows_without_maximum(place);
    }
    device::at(Site::softmax);
    return softmax_by_sums(acc_S, block, place, compares);
  }
  // compares: scores with m first.
  CUTE_DEVICE bool softmax_by_sums(auto& acc_S, ListedBlock const& block, int place,
                                   bool compares) {
    if (!compares) {
      PerRow const sums = softmax.exponentiate_with_m(acc_S, params.problem.softcap);
      if (!softmax.are_large(sums)) {
        softmax.add(sums);
        return false;
      }
      if (!softmax.overflow(sums)) {
        softmax.grow(acc_S, sums, correction);
        return true;
      }
      compute_again(acc_S, block);
      mask.cut_all();  // of the tile's blocks none is to take that long again
    }
    return softmax_by_maximum(acc_S, block, place);
  }
  // The same of scores that are made in between.
  // NOTE: others go by a maximum. A second way by sums would share registers with the usual one, which moves P there.
  CUTE_DEVICE bool softmax_where_most_are_usual(auto& acc_S, int place) {
    ListedBlock const block = next_block(place);
    if (!mask.cuts(block.number) && usual.are_of(block, ahead)) {
      device::at(Site::softmax);
      usual.make(acc_S, tile, first_query(), block.number);
      PerRow const sums =
          softmax.exponentiate_with_m(acc_S, params.problem.softcap,
                                      usual.before_exponential(ahead, block.number, blocks.begin),
                                      usual.line(tile, first_query(), block.number));
      if constexpr (Usual::kReadsAhead) {
        usual.load_ahead(ahead, place - 1);
      } else {
        read_ahead(place - 1);
      }
      if (!softmax.are_large(sums)) {
        softmax.add(sums);
        return false;
      }
      if (!softmax.overflow(sums)) {
        softmax.grow(acc_S, sums, correction);
        return true;
      }
      compute_again(acc_S, block);
      mask.cut_all();
    } else {
      take_scores(acc_S, place);
    }
    return softmax_by_maximum(acc_S, block, place);
  }
  CUTE_DEVICE bool softmax_by_maximum(auto& acc_S, ListedBlock const& block, int place) {
    mask.apply(acc_S, block.number);
    bool const rescale =
        softmax.template update<false, true>(acc_S, correction, params.problem.softcap);
    compare_next_if_needed(place);
    return rescale;
  }

  // After the block at a place: the next one is compared with m where a row has not met a score that counts.
  CUTE_DEVICE void compare_next_if_needed(int place) {
    if (softmax.lacks_maximum()) {
      compare_next(place);
    }
  }
  CUTE_DEVICE void compare_next(int place) {
    if constexpr (kKnowsShown) {
      // Cut blocks are asked what they show.
      ListedBlock const next = block_of_span(place - 1);
      if (!next.is_cut) {
        mask.also_cut(next.number);
      }
    } else {
      mask.also_cut(block_at(place - 1).number);
    }
  }

  // Whether a cut block shows a score of a row that has not met one. Where it does not, the row's sum is 0 whatever its m is.
  CUTE_DEVICE bool shows_rows_without_maximum(int place) {
    if (!softmax.lacks_maximum()) {
      return false;
    }
    compare_next(place);
    return device::any_lane((softmax.lacks_maximum(0) && ahead.shows(0)) ||
                            (softmax.lacks_maximum(1) && ahead.shows(1)));
  }

  // Loads what keys of a block have, if it is cut and its number is known.
  CUTE_DEVICE void load_keys_of(int place) {
    if (place < variant::kListedPlaces && !is_whole(place)) {
      ahead.load(tile, place);
    }
  }
  // The block at a place is next; makes its bits, if it is cut. What its keys have was loaded with the cut block before it, if
  // there is one.
  CUTE_DEVICE void find_block(int place) {
    ahead.block = {place, false};
    if (is_whole(place)) {
      return;
    }
    ahead.block = block_at(place);
    if (!ahead.block.is_cut) {
      return;
    }
    bool const is_loaded =
        place < variant::kListedPlaces && (place == first_place() || !is_whole(place + 1));
    if (!is_loaded) {
      ahead.load(tile, ahead.block.number);
    }
    ahead.make(tile);
    if (place > blocks.begin) {
      load_keys_of(place - 1);
    }
  }

  // Else the bits of the others would depend on what these hold.
  CUTE_DEVICE void leave_out_missing_rows() {
    if constexpr (Traits::kRescaleThreshold || kSoftcap) {
      Tensor by_rows = rows_by_columns(coords_S());  // ((2,MMA_M),(2,V,MMA_N)) of (row, column)
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        PackedRow const row = unpack_row<Traits>(params, get<0>(by_rows(r, 0)));
        if (!row_exists<Traits, kFeatures>(params, tile, first_query(), row)) {
          softmax.leave_out(r);
        }
      }
    }
  }

  CUTE_DEVICE void begin_dropout() { dropped = dropout_of<Traits>(params, tile, first_query()); }
  CUTE_DEVICE void draw_dropout(int place) { dropped.draw(params.dropout, block_at(place).number); }
};

}  // namespace pyflash::sm90
