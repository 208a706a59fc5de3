// The __global__ function of a config with a variant and a combination of features, and what makes its params.
#pragma once

#include "cute_kernels/sm90/forward/kernel.h"
#include "cute_kernels/variant/kernel_params.h"
#include "cute_kernels/variant/makers.cuh"

namespace pyflash {

template <FlashForwardSm90Config kConfig, class Variant, ForwardFeatures kFeatures>
__global__ void __launch_bounds__(sm90::KernelTraits<kConfig>::kNThreads,
                                  sm90::KernelTraits<kConfig>::kCtasPerSm)
    flash_forward_sm90_variant_kernel(
        __grid_constant__ variant::WithVariant<sm90::KernelParams, Variant> const params) {
#if defined(__CUDA_ARCH__)  // the host needs no body
  sm90::forward_cta<sm90::KernelTraits<kConfig>, kFeatures, Variant>(params);
#endif
}

template <FlashForwardSm90Config kConfig, class Variant, ForwardFeatures kFeatures>
void const* variant_kernel() {
  return reinterpret_cast<void const*>(
      flash_forward_sm90_variant_kernel<kConfig, Variant, kFeatures>);
}

template <class Variant>
variant::Makers variant_makers() {
  return variant::makers<Variant, variant::TileSort, /*kSorts=*/true, /*kBits=*/true>();
}

}  // namespace pyflash
