// Launches the family's kernels.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "cute_kernels/registry.h"
#include "cute_kernels/sm80/forward/grid.h"

namespace pyflash {

// kernel: a __global__ function, or a cudaKernel_t. given: the kernel's params, of a problem with `params`.
inline cudaError_t launch_with_params(void const* kernel, FlashForwardKernelConfig const& config,
                                      ConfigMapRow<Forward> const& row,
                                      Forward::Params const& params, void const* given,
                                      cudaStream_t stream) {
  // Per device and idempotent: the attribute belongs to the current device's copy of the kernel.
  cudaError_t const error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, row.smem_bytes);
  if (error != cudaSuccess) {
    return error;
  }
  int64_t const ctas = sm80::n_ctas(params, config.B_r);
  if (ctas > INT32_MAX) {
    return cudaErrorInvalidConfiguration;
  }
  void* arguments[] = {const_cast<void*>(given)};
  return cudaLaunchKernel(kernel, dim3(uint32_t(ctas)), dim3(row.n_threads), arguments,
                          row.smem_bytes, stream);
}

inline cudaError_t launch_kernel(void const* kernel, FlashForwardKernelConfig const& config,
                                 ConfigMapRow<Forward> const& row, Forward::Params const& params,
                                 cudaStream_t stream) {
  return launch_with_params(kernel, config, row, params, &params, stream);
}

inline ProblemRefusal<Forward> refusal_of(FlashForwardKernelConfig const&) { return nullptr; }

}  // namespace pyflash
