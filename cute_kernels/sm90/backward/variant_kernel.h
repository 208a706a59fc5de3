// The __global__ function of a config with a variant and a combination of features, and what makes its params.
#pragma once

#include "cute_kernels/sm90/backward/kernel.h"
#include "cute_kernels/variant/kernel_params.h"
#include "cute_kernels/variant/makers.cuh"

namespace pyflash {

template <FlashBackwardSm90Config kConfig, class Variant, BackwardFeatures kFeatures>
__global__ void __launch_bounds__(sm90::backward::KernelTraits<kConfig>::kNThreads, 1)
    flash_backward_sm90_variant_kernel(
        __grid_constant__ variant::WithVariant<sm90::backward::KernelParams, Variant> const
            params) {
#if defined(__CUDA_ARCH__)  // the host needs no body
  sm90::backward::backward_cta<sm90::backward::KernelTraits<kConfig>, kFeatures, Variant>(params);
#endif
}

template <FlashBackwardSm90Config kConfig, class Variant, BackwardFeatures kFeatures>
void const* variant_kernel() {
  return reinterpret_cast<void const*>(
      flash_backward_sm90_variant_kernel<kConfig, Variant, kFeatures>);
}

template <class Variant>
variant::Makers variant_makers() {
  return variant::makers<Variant, variant::KeyTileSort, true>();
}

}  // namespace pyflash
