// The __global__ function of a config and a combination of features, and what it takes.
#pragma once

#include "cute_kernels/kernel_resources.h"
#include "cute_kernels/sm90/backward/backward_kernel.cuh"

namespace pyflash {

template <FlashBackwardSm90Config kConfig, BackwardFeatures kFeatures>
__global__ void __launch_bounds__(sm90::backward::KernelTraits<kConfig>::kNThreads, 1)
    flash_backward_sm90_kernel(__grid_constant__ sm90::backward::KernelParams const params) {
#if defined(__CUDA_ARCH__)  // the host needs no body
  sm90::backward::backward_cta<sm90::backward::KernelTraits<kConfig>, kFeatures>(params);
#endif
}

// What a kernel takes, whatever its features.
template <FlashBackwardSm90Config kConfig>
constexpr KernelResources kernel_resources(Span<BackwardFeatures>) {
  using Traits = sm90::backward::KernelTraits<kConfig>;
  return {Traits::kNThreads, int(sizeof(typename Traits::SharedStorage))};
}

}  // namespace pyflash
