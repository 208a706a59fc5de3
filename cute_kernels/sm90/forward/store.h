// A tile's O and lse, from a warpgroup's registers to where they go: the output, a split's or a share's part, or the cluster.
#pragma once

#include <cmath>

#include <cute/tensor.hpp>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/sm90/forward/epilogue.h"
#include "cute_kernels/sm90/forward/kernel_params.h"
#include "cute_kernels/sm90/forward/merge.h"
#include "cute_kernels/sm90/forward/problem.h"
#include "cute_kernels/sm90/gemm.h"

namespace pyflash::sm90 {

using namespace cute;
using device::Site;

template <ForwardFeatures kFeatures>
CUTE_DEVICE bool is_split(KernelParams const& params) {
  return !kFeatures.equal_shares && params.problem.num_splits > 1;
}

// softmax: of the tile. first_query: the warpgroup's. may_be_split: false where the kernel was launched without splits.
// barrier: a named one of the warpgroup.
template <class Traits, ForwardFeatures kFeatures, class MayBeSplit, class Params,
          class TileSoftmax, class AccO>
CUTE_DEVICE void finalise_and_store(MayBeSplit may_be_split, Params const& params,
                                    typename Traits::SharedStorage& smem, int warpgroup,
                                    Tile const& tile, int first_query, TileSoftmax const& softmax,
                                    AccO& acc_O, int barrier) {
  auto const& problem = params.problem;
  bool const is_split = sm90::is_split<kFeatures>(params);
  device::at(Site::O_rescale);
  Tensor tOcO = coords_of<Traits::kHeadDim>(device::fresh_thread_idx() % kWarpgroup);
  typename TileSoftmax::PerRow sinks;
  fill(sinks, -INFINITY);
  bool const is_part = kFeatures.equal_shares && tile.split != Tile::kWhole;
  if constexpr (kFeatures.sinks) {
    if (problem.sinks.data != nullptr && !is_split &&
        !is_part) {  // else they join when the splits are merged
      load_sinks<Traits>(params, tile, first_query, tOcO, sinks);
    }
  }
  auto const lse = softmax.finalise(acc_O, sinks, problem.softcap);
  if constexpr (kFeatures.dropout) {
    CUTE_UNROLL
    for (int i = 0; i < size(acc_O); ++i) {
      acc_O(i) *= params.dropout.factor;
    }
  }
  if (is_part) {
    store_part<Traits, kFeatures>(params, tile, first_query, acc_O, lse, tOcO);
  } else if (may_be_split.value && is_split) {
    if constexpr (Traits::kMaxCluster > 1) {
      if (problem.cluster > 1) {
        merge_in_cluster<Traits, kFeatures>(params, tile, acc_O, lse, tOcO,
                                            reinterpret_cast<float*>(smem.k), barrier);
        return;
      }
    }
    store_partial<Traits, kFeatures>(params, tile, first_query, acc_O, lse, tOcO);
  } else {
    store_lse<Traits, kFeatures>(params, tile, first_query, lse, tOcO);
    store_O<Traits, kFeatures>(params, tile, first_query, acc_O, smem.epilogue(warpgroup));
  }
}

}  // namespace pyflash::sm90
