// How the family's kernels with a variant are launched. Included by the emitted rows alone.
#pragma once

#include "cute_kernels/sm80/forward/launcher.h"
#include "cute_kernels/sm80/forward/listed.h"
#include "cute_kernels/variant/launch.h"

namespace pyflash {

template <class Variant>
constexpr int variant_smem_bytes(FlashForwardKernelConfig const&,
                                 ConfigMapRow<Forward> const& row) {
  return row.smem_bytes;
}

template <class Variant>
cudaError_t launch_variant(void const* kernel, FlashForwardKernelConfig const& config,
                           ConfigMapRow<Forward> const& row, Forward::Params const& params,
                           typename Variant::Params const& captured,
                           variant::Made<Variant> const& made, cudaStream_t stream) {
  variant::WithVariant<Forward::Params, Variant> given{params, made, captured};
  return launch_with_params(kernel, config, row, params, &given, stream);
}

}  // namespace pyflash
