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

}  // namespace pyflash
