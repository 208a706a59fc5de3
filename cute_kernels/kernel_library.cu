#include "cute_kernels/kernel_library.h"

#include <cuda_runtime_api.h>

#include "cute_kernels/families.h"
#include "cute_kernels/sm80/launcher.h"
#include "cute_kernels/sm90/launcher.h"

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

int load_cubin(void const* image, char const* symbol, void const** kernel) {
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

int launch(void const* kernel, ConfigMapRow const& row, ForwardParams const& params, void* stream) {
  auto const on = static_cast<cudaStream_t>(stream);
  return visit_family(
      row.config,
      [&](FlashForwardKernelConfig const&) { return sm80::launch(kernel, row, params, on); },
      [&](FlashForwardSm90Config const& config) {
        return sm90::launch(kernel, config, row, params, on);
      });
}

void describe(ConfigMapRow& row) {
  visit_family(
      row.config, [](FlashForwardKernelConfig const&) {},
      [&](FlashForwardSm90Config const& config) {
        row.refusal = sm90::refusal_of_row;
        row.packs_heads = config.pack_gqa;
        row.max_cluster = sm90::max_cluster(config);
      });
}

char const* error_string(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

}  // namespace pyflash
