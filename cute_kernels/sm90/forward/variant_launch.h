// How the family's kernels with a variant are launched. Included by the emitted rows alone.
#pragma once

#include "cute_kernels/sm90/forward/launcher.h"
#include "cute_kernels/sm90/forward/listed.h"
#include "cute_kernels/sm90/forward/stream_shape.h"
#include "cute_kernels/variant/launch.h"

namespace pyflash {

template <class Variant>
constexpr int variant_smem_bytes(FlashForwardSm90Config const& config,
                                 ConfigMapRow<Forward> const& row) {
  return sm90::variant_smem_bytes<Variant>(config, row.smem_bytes);
}

template <class Variant>
cudaError_t launch_variant(void const* kernel, FlashForwardSm90Config const& config,
                           ConfigMapRow<Forward> const& row, Forward::Params const& params,
                           typename Variant::Params const& captured,
                           variant::Made<Variant> const& made, cudaStream_t stream) {
  sm90::Plan plan;
  cudaError_t const error = sm90::plan_launch(plan, config, row, params);
  if (error != cudaSuccess) {
    return error;
  }
  set_variant_order(plan, config, params, made.order_of_tiles);
  variant::WithVariant<sm90::KernelParams, Variant> given{plan.params, made, captured};
  return sm90::launch_plan(plan, kernel, row, &given, stream);
}

// Launches what chooses between the sorted tiles of a list and their places, if the variant has one that does.
inline cudaError_t choose_order(variant::Making const& making, variant::TileSort const& sort,
                                int* list, FlashForwardSm90Config const& config,
                                ConfigMapRow<Forward> const& row, Forward::Params const& params) {
  sm90::Plan plan;
  if (making.makers.choose == nullptr) {
    return cudaSuccess;
  }
  cudaError_t const error = sm90::plan_launch(plan, config, row, params);
  if (error != cudaSuccess || plan.n_ctas == 0) {
    return error;
  }
  variant::OrderChoice<sm90::TilePlaces> const choice{places_of(plan, config, params), sort};
  return making.launch(making.makers.choose, 1, variant::kChoosingThreads, choice, list);
}

}  // namespace pyflash
