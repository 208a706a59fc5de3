// Launches the family's kernels.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "cute_kernels/registry.h"
#include "cute_kernels/sm80/backward/grid.h"

namespace pyflash {

// kernel: a __global__ function, or a cudaKernel_t. given: the kernel's params, of a problem with `params`, which have the shape of
// the config, and its workspace.
inline cudaError_t launch_with_params(void const* kernel, FlashBackwardKernelConfig const& config,
                                      ConfigMapRow<Backward> const& row,
                                      BackwardParams const& params, void const* given,
                                      cudaStream_t stream) {
  // Per device and idempotent: the attribute belongs to the current device's copy of the kernel.
  cudaError_t const error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, row.smem_bytes);
  if (error != cudaSuccess) {
    return error;
  }
  int64_t const ctas = sm80::backward::n_ctas(config, params);
  if (ctas == 0) {
    return cudaSuccess;
  }
  if (ctas > INT32_MAX) {
    return cudaErrorInvalidConfiguration;
  }
  void* arguments[] = {const_cast<void*>(given)};
  return cudaLaunchKernel(kernel, dim3(uint32_t(ctas)), dim3(row.n_threads), arguments,
                          row.smem_bytes, stream);
}

inline cudaError_t launch_kernel(void const* kernel, FlashBackwardKernelConfig const& config,
                                 ConfigMapRow<Backward> const& row, BackwardParams const& params,
                                 cudaStream_t stream) {
  return launch_with_params(kernel, config, row, params, &params, stream);
}

inline ProblemRefusal<Backward> refusal_of(FlashBackwardKernelConfig const&) {
  return [](ConfigMapRow<Backward> const& row, BackwardParams const& params) {
    return sm80::backward::refusal(std::get<FlashBackwardKernelConfig>(row.config), params);
  };
}

}  // namespace pyflash
