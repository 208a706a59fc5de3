// The __global__ function of a config and a combination of features, and what it takes.
#pragma once

#include "cute_kernels/features.h"
#include "cute_kernels/kernel_resources.h"
#include "cute_kernels/sm90/forward/forward_kernel.cuh"

namespace pyflash {

template <FlashForwardSm90Config kConfig, ForwardFeatures kFeatures>
__global__ void __launch_bounds__(sm90::KernelTraits<kConfig>::kNThreads,
                                  sm90::KernelTraits<kConfig>::kCtasPerSm)
    flash_forward_sm90_kernel(__grid_constant__ sm90::KernelParams const params) {
#if defined(__CUDA_ARCH__)  // the host needs no body
  sm90::forward_cta<sm90::KernelTraits<kConfig>, kFeatures>(params);
#endif
}

// What suffices for each kernel with these features.
template <FlashForwardSm90Config kConfig>
constexpr KernelResources kernel_resources(Span<ForwardFeatures> built) {
  using Traits = sm90::KernelTraits<kConfig>;
  bool fixed_splits = false;
  for (ForwardFeatures const& features : built) {
    fixed_splits = fixed_splits || features.fixed_splits;
  }
  return {Traits::kNThreads, int(sizeof(typename Traits::SharedStorage)) +
                                 sm90::extra_smem_bytes(kConfig, fixed_splits)};
}

}  // namespace pyflash
