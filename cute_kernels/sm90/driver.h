// What a launch asks of the driver and of the device.
#pragma once

#include <cstdint>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cute_kernels/common/clusters.h"
#include "cute_kernels/programmatic_launch.h"
#include "cute_kernels/registry.h"
#include "cute_kernels/sm90/tensor_map.h"

namespace pyflash::sm90 {

// A function of the driver, without linking to libcuda; nullptr where the driver has none.
template <class Function>
Function driver_function(char const* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  cudaError_t const error =
      cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &result);
#else
  cudaError_t const error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &result);
#endif
  bool const found = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
  return reinterpret_cast<Function>(found ? function : nullptr);
}

inline TensorMapEncoder tensor_map_encoder() {
  static auto const encoder = driver_function<TensorMapEncoder>("cuTensorMapEncodeTiled");
  return encoder;
}

// Gives this thread a context, which driver functions need: a thread that has not used CUDA yet has none. A context that the
// caller made current stays.
inline cudaError_t ensure_context() {
  using Getter = CUresult (*)(CUcontext*);
  static auto const get_current = driver_function<Getter>("cuCtxGetCurrent");
  CUcontext context = nullptr;
  if (get_current != nullptr && get_current(&context) == CUDA_SUCCESS && context != nullptr) {
    return cudaSuccess;
  }
  int device = 0;
  cudaError_t const error = cudaGetDevice(&device);
  return error == cudaSuccess ? cudaSetDevice(device) : error;
}

// CTAs of a row's kernels that the current device runs at a time.
inline cudaError_t count_resident_ctas(int64_t& n_ctas, RowOfAnyOp const& row) {
  int device = 0;
  int n_sms = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, device);
  }
  n_ctas = int64_t(n_sms) * of_arch(row.ctas_per_sm, 90);
  return error;
}

struct Grid {
  void const* kernel;  // a __global__ function, or a cudaKernel_t
  int64_t n_ctas;      // a multiple of cluster; 0: there is nothing to launch
  int n_threads;
  int smem_bytes;
  int cluster = 1;
};

// Launches a kernel early, behind the one before it in the stream.
inline cudaError_t launch_early(Grid const& grid, void* params, cudaStream_t stream) {
  if (grid.n_ctas == 0) {
    return cudaSuccess;
  }
  // Per device and idempotent: the attributes belong to the current device's copy of the kernel.
  cudaError_t error = cudaFuncSetAttribute(grid.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           grid.smem_bytes);
  if (error == cudaSuccess && grid.cluster > kPortableCluster) {
    error = cudaFuncSetAttribute(grid.kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  if (error != cudaSuccess) {
    return error;
  }
  cudaLaunchAttribute attributes[2]{};
  unsigned n_attributes = 0;
  if (supports_programmatic_launch()) {
    attributes[n_attributes++] = programmatic_launch();
  }
  if (grid.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[n_attributes++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(grid.cluster), 1, 1};
  }
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<uint32_t>(grid.n_ctas));
  launch.blockDim = dim3(grid.n_threads);
  launch.dynamicSmemBytes = grid.smem_bytes;
  launch.stream = stream;
  launch.attrs = attributes;
  launch.numAttrs = n_attributes;
  void* arguments[] = {params};
  return cudaLaunchKernelExC(&launch, grid.kernel, arguments);
}

}  // namespace pyflash::sm90
