#include "cute_kernels/kernel_library.h"

#include <cuda_runtime_api.h>

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

char const* error_string(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

}  // namespace pyflash
