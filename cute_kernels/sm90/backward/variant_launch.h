// How the family's kernels with a variant are launched. Included by the emitted rows alone.
#pragma once

#include "cute_kernels/sm90/backward/launcher.h"
#include "cute_kernels/sm90/backward/listed.h"
#include "cute_kernels/variant/gradient_launch.h"

namespace pyflash {

template <class Variant>
cudaError_t launch_variant(void const* kernel, FlashBackwardSm90Config const& config,
                           ConfigMapRow<Backward> const& row, BackwardParams const& params,
                           typename Variant::Params const& captured,
                           variant::Made<Variant> const& made, cudaStream_t stream) {
  sm90::backward::Plan plan;
  cudaError_t const error = sm90::backward::plan_launch(plan, config, row, params);
  if (error != cudaSuccess) {
    return error;
  }
  variant::WithVariant<sm90::backward::KernelParams, Variant> given{plan.params, made, captured};
  return sm90::backward::launch_plan(plan, kernel, row, &given, stream);
}

}  // namespace pyflash
