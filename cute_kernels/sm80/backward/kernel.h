// The __global__ function of a config and a combination of features, and what it takes.
#pragma once

#include "cute_kernels/kernel_resources.h"
#include "cute_kernels/sm80/backward/backward_kernel.cuh"

namespace pyflash {

template <FlashBackwardKernelConfig kConfig, BackwardFeatures kFeatures>
__global__ void __launch_bounds__(sm80::backward::KernelTraits<kConfig>::kNThreads,
                                  of_this_arch(kCtasPerSm<kConfig>))
    flash_backward_kernel(__grid_constant__ BackwardParams const params) {
#if defined(__CUDA_ARCH__)  // the host needs no body
  sm80::backward::backward_cta<sm80::backward::KernelTraits<kConfig>, kFeatures>(params);
#endif
}

// What a kernel takes, whatever its features.
template <FlashBackwardKernelConfig kConfig>
constexpr KernelResources kernel_resources(Span<BackwardFeatures>) {
  using Traits = sm80::backward::KernelTraits<kConfig>;
  return {Traits::kNThreads, int(sizeof(typename Traits::SharedStorage))};
}

}  // namespace pyflash
