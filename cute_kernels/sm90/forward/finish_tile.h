// What a computing warpgroup does with O of a tile, or of a part of one: divides it by l and stores it, merges it with other splits, or
// folds them.
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/forward/epilogue.h"
#include "cute_kernels/sm90/forward/fold.h"
#include "cute_kernels/sm90/forward/merge.h"
#include "cute_kernels/sm90/forward/problem.h"
#include "cute_kernels/sm90/forward/share_schedule.h"
#include "cute_kernels/sm90/forward/warpgroup_gemms.h"
#include "cute_kernels/sm90/gemm.h"

namespace pyflash::sm90 {

using namespace cute;
using device::Site;

template <class Traits, ForwardFeatures kFeatures, class Variant>
struct TileOutput {
  using Schedule = ScheduleOf<Traits, kFeatures, Variant>;

  ParamsWith<Variant> const& params;
  typename Traits::SharedStorage& smem;
  int const warpgroup;
  int const first_row_query;  // of the warpgroup, from the tile's first query

  CUTE_DEVICE bool is_split() const {
    return !kFeatures.equal_shares && params.problem.num_splits > 1;
  }

  // kMayBeSplit: false where the kernel was launched without splits. goes_on: a split of the tile was folded before.
  template <bool kMayBeSplit, class TileSoftmax>
  CUTE_DEVICE void finalise_and_store(Tile const& tile, TileSoftmax const& softmax, auto& acc_O,
                                      bool goes_on) const {
    auto const& problem = params.problem;
    device::at(Site::O_rescale);
    if constexpr (Schedule::kMayFold) {
      if (Schedule::folds(params)) {
        fold<true>(tile, softmax, acc_O, goes_on);
        return;
      }
    }
    Tensor tOcO = coords_O();
    int const first_query = tile.first_query + first_row_query;
    bool const is_part = kFeatures.equal_shares && tile.split != Tile::kWhole;
    typename TileSoftmax::PerRow sinks;
    fill(sinks, -INFINITY);
    if constexpr (kFeatures.sinks) {
      if (problem.sinks.data != nullptr && !is_split() &&
          !is_part) {  // else they join when the splits are merged
        load_sinks<Traits>(params, tile, first_query, tOcO, sinks);
      }
    }
    auto const lse =
        softmax.template finalise<kFeatures.fixed_splits>(acc_O, sinks, problem.softcap);
    if constexpr (kFeatures.dropout) {
      CUTE_UNROLL
      for (int i = 0; i < size(acc_O); ++i) {
        acc_O(i) *= params.dropout.factor;
      }
    }
    if (is_part) {
      store_part<Traits, kFeatures>(params, tile, first_query, acc_O, lse, tOcO);
    } else if (kMayBeSplit && is_split()) {
      if constexpr (Traits::kMaxCluster > 1) {
        if (problem.cluster > 1) {
          merge_in_cluster<Traits, kFeatures>(params, tile, acc_O, lse, tOcO,
                                              reinterpret_cast<float*>(smem.k),
                                              kWarpgroupSync + warpgroup);
          return;
        }
      }
      store_partial<Traits, kFeatures>(params, tile, first_query, acc_O, lse, tOcO);
    } else {
      store_lse<Traits, kFeatures>(params, tile, first_query, lse, tOcO);
      store_O<Traits, kFeatures>(params, tile, first_query, acc_O, smem.epilogue(warpgroup));
    }
  }

  // Where a tile has all splits at fixed keys: takes in the one that O and `softmax` are of, and where it is the last, stores.
  template <bool kCloses, class TileSoftmax>
  CUTE_DEVICE void fold(Tile const& tile, TileSoftmax const& softmax, auto& acc_O,
                        bool goes_on) const {
    auto const& problem = params.problem;
    Tensor tOcO = coords_O();
    int const first_query = tile.first_query + first_row_query;
    typename TileSoftmax::PerRow sinks;
    fill(sinks, -INFINITY);
    auto lse = softmax.template finalise<true>(acc_O, sinks, problem.softcap);
    if constexpr (kFeatures.sinks && kCloses) {
      if (problem.sinks.data != nullptr) {
        load_sinks<Traits>(params, tile, first_query, tOcO, sinks);
      }
    }
    fold_split<Traits, kCloses, kFeatures.sinks>(smem, warpgroup, goes_on, acc_O, lse, sinks);
    if constexpr (kCloses) {
      store_lse<Traits, kFeatures>(params, tile, first_query, lse, tOcO);
      store_O<Traits, kFeatures>(params, tile, first_query, acc_O, smem.epilogue(warpgroup));
    }
  }

 private:
  CUTE_DEVICE static auto coords_O() {  // (MMA,MMA_M,MMA_K)
    return coords_of<Traits::kHeadDim>(device::fresh_thread_idx() % kWarpgroup);
  }
};

}  // namespace pyflash::sm90
