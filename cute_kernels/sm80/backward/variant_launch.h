// How the family's kernels with a variant are launched. Included by the emitted rows alone.
#pragma once

#include "cute_kernels/sm80/backward/launcher.h"
#include "cute_kernels/sm80/backward/listed.h"
#include "cute_kernels/variant/gradient_launch.h"

namespace pyflash {

template <class Variant>
cudaError_t launch_variant(void const* kernel, FlashBackwardKernelConfig const& config,
                           ConfigMapRow<Backward> const& row, BackwardParams const& params,
                           typename Variant::Params const& captured,
                           variant::Made<Variant> const& made, cudaStream_t stream) {
  variant::WithVariant<BackwardParams, Variant> given{params, made, captured};
  return launch_with_params(kernel, config, row, params, &given, stream);
}

}  // namespace pyflash
