// Launches the family's kernels: those that were compiled with their host code, and those of cubins.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "cute_kernels/params.h"
#include "cute_kernels/sm80/grid.h"

namespace pyflash::sm80 {

struct LaunchShape {
  int block_rows;  // of Q, per CTA
  int n_threads;
  int smem_bytes;  // dynamic
};

// kernel: a __global__ function, or a cudaKernel_t.
inline cudaError_t launch(void const* kernel, LaunchShape const& shape, ForwardParams const& params,
                          cudaStream_t stream) {
  // Per device and idempotent: the attribute belongs to the current device's copy of the kernel.
  cudaError_t const error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.smem_bytes);
  if (error != cudaSuccess) {
    return error;
  }
  int64_t const ctas = n_ctas(params, shape.block_rows);
  if (ctas > INT32_MAX) {
    return cudaErrorInvalidConfiguration;
  }
  void* arguments[] = {const_cast<ForwardParams*>(&params)};
  return cudaLaunchKernel(kernel, dim3(uint32_t(ctas)), dim3(shape.n_threads), arguments,
                          shape.smem_bytes, stream);
}

}  // namespace pyflash::sm80
