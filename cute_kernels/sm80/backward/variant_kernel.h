// The __global__ function of a config with a variant and a combination of features, and what makes its params.
#pragma once

#include "cute_kernels/sm80/backward/kernel.h"
#include "cute_kernels/variant/kernel_params.h"
#include "cute_kernels/variant/makers.cuh"

namespace pyflash {

template <FlashBackwardKernelConfig kConfig, class Variant, BackwardFeatures kFeatures>
__global__ void __launch_bounds__(sm80::backward::KernelTraits<kConfig>::kNThreads,
                                  of_this_arch(kCtasPerSm<kConfig>))
    flash_backward_variant_kernel(
        __grid_constant__ variant::WithVariant<BackwardParams, Variant> const params) {
#if defined(__CUDA_ARCH__)  // the host needs no body
  sm80::backward::backward_cta<sm80::backward::KernelTraits<kConfig>, kFeatures, Variant>(params);
#endif
}

template <FlashBackwardKernelConfig kConfig, class Variant, BackwardFeatures kFeatures>
void const* variant_kernel() {
  return reinterpret_cast<void const*>(flash_backward_variant_kernel<kConfig, Variant, kFeatures>);
}

template <class Variant>
variant::Makers variant_makers() {
  return variant::makers<Variant, variant::KeyTileSort, false>();
}

}  // namespace pyflash
