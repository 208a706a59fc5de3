// From a config to a launched kernel: the __global__ wrapper, its launcher and its row of the config map. Included by the
// emitted translation units only.
#pragma once

#include <cuda_runtime_api.h>

#include "cute_kernels/row.h"
#include "cute_kernels/sm80/forward_kernel.cuh"

namespace pyflash {

template <FlashForwardKernelConfig kConfig, ForwardFeatures kFeatures>
__global__ void __launch_bounds__(sm80::KernelTraits<kConfig>::kNThreads,
                                  of_this_arch(kCtasPerSm<kConfig>))
    flash_forward_kernel(__grid_constant__ ForwardParams const params) {
  sm80::forward_cta<sm80::KernelTraits<kConfig>, kFeatures>(params);
}

// All CTAs in grid.x: no limit of 65535 on heads or batches.
template <FlashForwardKernelConfig kConfig, ForwardFeatures kFeatures>
int launch_kernel(ForwardParams const& params, cudaStream_t stream) {
  using Traits = sm80::KernelTraits<kConfig>;
  constexpr int kSmemBytes = sizeof(typename Traits::SharedStorage);
  auto const kernel = flash_forward_kernel<kConfig, kFeatures>;
  // Per device and idempotent: the attribute belongs to the current device's copy of the kernel.
  cudaError_t const error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes);
  if (error != cudaSuccess) {
    return error;
  }
  int64_t const n_ctas = sm80::n_ctas<Traits>(params);
  if (n_ctas > INT32_MAX) {
    return cudaErrorInvalidConfiguration;
  }
  kernel<<<dim3(uint32_t(n_ctas)), dim3(Traits::kNThreads), kSmemBytes, stream>>>(params);
  return cudaGetLastError();
}

// With the first combination that covers the problem; where none does, the host has refused it.
template <FlashForwardKernelConfig kConfig, ForwardFeatures... kBuilt>
int launch_forward(ForwardParams const& params, void* stream) {
  int error = cudaErrorNotSupported;
  run_first_that_covers<kBuilt...>(features_needed(params, kConfig.d_head), [&](auto features) {
    error = launch_kernel<kConfig, features.value>(params, static_cast<cudaStream_t>(stream));
  });
  return error;
}

template <FlashForwardKernelConfig kConfig, ForwardFeatures... kBuilt>
ConfigMapRow forward_row(char const* short_form, BuiltFor const& built_for) {
  using Traits = sm80::KernelTraits<kConfig>;
  return make_row<kConfig, kBuilt...>(short_form, built_for, Traits::kNThreads,
                                      sizeof(typename Traits::SharedStorage),
                                      launch_forward<kConfig, kBuilt...>);
}

}  // namespace pyflash
