// The __global__ function of a config and a combination of features, and what it takes.
#pragma once

#include "cute_kernels/features.h"
#include "cute_kernels/kernel_resources.h"
#include "cute_kernels/sm80/forward/forward_kernel.cuh"
#include "cute_kernels/sm80/forward/fp8.h"

namespace pyflash {

namespace sm80 {
using KernelParams = ListedForwardParams;
}

template <FlashForwardKernelConfig kConfig, ForwardFeatures kFeatures>
__global__ void __launch_bounds__(sm80::KernelTraits<kConfig>::kNThreads,
                                  of_this_arch(kCtasPerSm<kConfig>))
    flash_forward_kernel(__grid_constant__ sm80::KernelParams const params) {
#if defined(__CUDA_ARCH__)  // the host needs no body
  if constexpr (kFeatures.fp8_kv) {
    sm80::fp8_cta<sm80::KernelTraits<kConfig>, kFeatures>(params);
  } else {
    sm80::forward_cta<sm80::KernelTraits<kConfig>, kFeatures>(params);
  }
#endif
}

// What a kernel takes, whatever its features.
template <FlashForwardKernelConfig kConfig>
constexpr KernelResources kernel_resources(Span<ForwardFeatures>) {
  using Traits = sm80::KernelTraits<kConfig>;
  return {Traits::kNThreads, int(sizeof(typename Traits::SharedStorage))};
}

}  // namespace pyflash
