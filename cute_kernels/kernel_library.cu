#include "cute_kernels/kernel_library.h"

#include <cuda_runtime_api.h>

#include "cute_kernels/sm80/launcher.h"

namespace pyflash {

int device_properties(int* sm_arch, int* n_sms) {
  int device = 0;
  int major = 0;
  int minor = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(n_sms, cudaDevAttrMultiProcessorCount, device);
  }
  *sm_arch = major * 10 + minor;
  return error;
}

int load_cubin(void const* image, char const* symbol, void** kernel) {
#if CUDART_VERSION >= 12080
  cudaLibrary_t library{};
  cudaError_t error =
      cudaLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (error != cudaSuccess) {
    return error;
  }
  cudaKernel_t found{};
  error = cudaLibraryGetKernel(&found, library, symbol);
  *kernel = found;
  return error;
#else
  return cudaErrorNotSupported;
#endif
}

int launch_cubin(void* kernel, ConfigMapRow const& row, ForwardParams const& params, void* stream) {
  sm80::LaunchShape const shape{
      .block_rows = row.B_r, .n_threads = row.n_threads, .smem_bytes = row.smem_bytes};
  return sm80::launch(kernel, shape, params, static_cast<cudaStream_t>(stream));
}

char const* error_string(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

}  // namespace pyflash
