// The __global__ functions of a backward's config, in the order in which they run.
#pragma once

#include "cute_kernels/sm90/backward/backward_kernel.cuh"
#include "cute_kernels/sm90/backward/postprocess.cuh"
#include "cute_kernels/sm90/backward/preprocess.cuh"

namespace pyflash {

template <FlashBackwardSm90Config kConfig>
__global__ void __launch_bounds__(sm90::backward::kPreprocessThreads)
    flash_backward_preprocess_kernel(
        __grid_constant__ sm90::backward::BackwardParams const problem) {
#if defined(__CUDA_ARCH__)
  sm90::backward::preprocess_cta<sm90::backward::KernelTraits<kConfig>>(problem);
#endif
}

template <FlashBackwardSm90Config kConfig, BackwardFeatures kFeatures>
__global__ void __launch_bounds__(sm90::backward::KernelTraits<kConfig>::kNThreads, 1)
    flash_backward_sm90_kernel(__grid_constant__ sm90::backward::KernelParams const params) {
#if defined(__CUDA_ARCH__)  // the host needs no body
  sm90::backward::backward_cta<sm90::backward::KernelTraits<kConfig>, kFeatures>(params);
#endif
}

template <FlashBackwardSm90Config kConfig>
__global__ void __launch_bounds__(sm90::backward::KernelTraits<kConfig>::kNThreads -
                                  sm90::kWarpgroup)
    flash_backward_postprocess_kernel(
        __grid_constant__ sm90::backward::BackwardParams const problem) {
#if defined(__CUDA_ARCH__)
  sm90::backward::postprocess_cta<sm90::backward::KernelTraits<kConfig>>(problem);
#endif
}

}  // namespace pyflash
