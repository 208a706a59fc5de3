// From a block of scores to P: what a variant makes of them, the mask, and the online softmax of a warpgroup's rows of a tile.
#pragma once

#include <cute/tensor.hpp>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/sm90/forward/kernel_params.h"
#include "cute_kernels/sm90/forward/mask.h"
#include "cute_kernels/sm90/forward/problem.h"
#include "cute_kernels/sm90/forward/scores.h"
#include "cute_kernels/sm90/forward/softmax.h"
#include "cute_kernels/sm90/forward/variant.h"
#include "cute_kernels/sm90/gemm.h"

namespace pyflash::sm90 {

using namespace cute;
using device::Site;

// first_query, in every function: the warpgroup's.
template <class Traits, ForwardFeatures kFeatures, class Variant>
struct BlockSoftmax {
  using Params = ParamsWith<Variant>;
  using Schedule = TileSchedule<Traits, kFeatures, Variant>;
  // A variant's scores are scaled and capped before the softmax gets them.
  static constexpr bool kSoftcap = kFeatures.softcap && !Variant::kHasScore;
  static constexpr int kBlockN = Traits::kBlockN;
  // Where this thread's scores are. NOTE: with four consumers and no right window to keep that would take the registers of two
  // of four chains of maxima.
  static constexpr bool kKeepsCoords = Traits::kNConsumers < 4 || kFeatures.right_window;
  using TileSoftmax = Softmax<typename Traits::Element, Traits::kRescaleThreshold, kSoftcap>;
  using CoordsS = decltype(coords_of<kBlockN>(0));

  Params const& params;
  CoordsS const tScS;
  ScoreMask<Traits, kFeatures> mask;
  TileSoftmax softmax;
  typename TileSoftmax::PerRow correction;  // of O, where it is to be rescaled

  CUTE_DEVICE explicit BlockSoftmax(Params const& params)
      : params(params),
        tScS(coords_of<kBlockN>(device::thread_idx() % kWarpgroup)),
        softmax(Variant::kHasScore ? 1.f : params.problem.softmax_scale,
                Variant::kHasScore ? kLn2 : params.problem.inverse_scale_log2) {}

  CUTE_DEVICE void begin(Tile const& tile, int first_query) {
    mask = ScoreMask<Traits, kFeatures>(params, tile, first_query, coords_S());
  }

  // S of the tile's first block, at a place, to P, in place. wait: for S.
  template <class AccS, class Wait>
  CUTE_DEVICE void first_to_P(AccS& acc_S, Tile const& tile, int first_query, int place,
                              Wait const& wait) {
    if constexpr (kSoftcap) {
      softmax.reset();
      leave_out_missing_rows(tile, first_query);
    }
    wait();
    to_P(true_type{}, acc_S, tile, first_query, place);
    // NOTE: without a cap each row masks its own first block, and there are too few registers for m before it.
    if constexpr (!kSoftcap) {
      leave_out_missing_rows(tile, first_query);
    }
    if constexpr (TileSoftmax::kSumsTell) {
      if (softmax.lacks_maximum()) {
        mask.also_cut(Schedule::walk(params, tile)[place - 1].number);
      }
    }
  }

  // S of the block at a place to P, in place. Returns whether O is to be rescaled.
  template <class First, class AccS>
  CUTE_DEVICE bool to_P(First first, AccS& acc_S, Tile const& tile, int first_query, int place) {
    Softcap const& softcap = params.problem.softcap;
    auto const walk = Schedule::walk(params, tile);
    auto const [n_block, is_cut] = walk[place];
    make_scores(acc_S, tile, first_query, n_block, is_cut);
    device::at(Site::softmax);
    if constexpr (TileSoftmax::kSumsTell && !first.value) {
      if (!mask.cuts(n_block) && !is_cut) {
        auto const sums = softmax.exponentiate_with_m(acc_S, softcap);
        if (!softmax.are_large(sums)) {
          softmax.add(sums);
          return false;
        }
        if (!softmax.overflow(sums)) {
          softmax.grow(acc_S, sums, correction);
          return true;
        }
        compute_scores<Traits, kFeatures>(params, tile, first_query, n_block, acc_S);
        make_scores(acc_S, tile, first_query, n_block, is_cut);
        device::at(Site::softmax);
        mask.cut_all();  // of the tile's blocks none is to take that long again
      }
      mask.apply(acc_S, n_block);
      bool const rescale = softmax.template update<false, true>(acc_S, correction, softcap);
      if (softmax.lacks_maximum()) {
        mask.also_cut(walk[place - 1].number);
      }
      return rescale;
    }
    // With a right window the first block is nearly always cut.
    if (mask.cuts(n_block) || is_cut || (first.value && kFeatures.right_window)) {
      mask.apply(acc_S, n_block);
      return softmax.template update<first.value, true>(acc_S, correction, softcap);
    }
    // NOTE: were they one, the compiler would move the wait for PV that follows above the exponentials.
    return softmax.template update<first.value, false>(acc_S, correction, softcap);
  }

 private:
  CUTE_DEVICE auto coords_S() const {
    if constexpr (kKeepsCoords) {
      return tScS;
    } else {
      return coords_of<kBlockN>(device::fresh_thread_idx() % kWarpgroup);
    }
  }

  // Raw scores to those that the softmax gets, but for the mask.
  template <class AccS>
  CUTE_DEVICE void make_scores(AccS& acc_S, Tile const& tile, int first_query, int n_block,
                               bool is_cut) const {
    if constexpr (Variant::kHasMask || Variant::kHasScore) {
      make_variant_scores<Traits, kFeatures, Variant>(acc_S, params, tile, first_query, n_block,
                                                      is_cut);
    }
    if constexpr (kFeatures.alibi_slopes) {
      add_alibi_to<Traits, kFeatures>(acc_S, params, tile, first_query, n_block);
    }
  }

  // Else the bits of the others would depend on what these hold.
  CUTE_DEVICE void leave_out_missing_rows(Tile const& tile, int first_query) {
    if constexpr (Traits::kRescaleThreshold || kSoftcap) {
      Tensor by_rows = rows_by_columns(coords_S());  // ((2,MMA_M),(2,V,MMA_N)) of (row, column)
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        PackedRow const row = unpack_row<Traits>(params, get<0>(by_rows(r, 0)));
        if (!row_exists<Traits, kFeatures>(params, tile, first_query, row)) {
          softmax.leave_out(r);
        }
      }
    }
  }
};

}  // namespace pyflash::sm90
