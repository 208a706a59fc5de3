// The __global__ function of a config and a combination of features.
#pragma once

#include "cute_kernels/ctas_per_sm.h"
#include "cute_kernels/features.h"
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

}  // namespace pyflash
