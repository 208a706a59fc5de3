// What a launch asks of the driver and of the device.
#pragma once

#include <cstdint>

#include <cuda.h>
#include <cuda_runtime_api.h>

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

}  // namespace pyflash::sm90
