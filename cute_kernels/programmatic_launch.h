// Launching a kernel while the one before it in the stream still runs (programmatic dependent launch). The kernel waits for
// that one's end itself.
#pragma once

#include <cuda_runtime_api.h>

namespace pyflash {

// Whether the driver can, in a graph too. Kernels for compute capability 9.0 and later wait.
inline bool supports_programmatic_launch() {
  static bool const supports = [] {
    constexpr int kFirstWithGraphs = 12030;
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess && version >= kFirstWithGraphs;
  }();
  return supports;
}

// Whether the current device runs the code that waits for the previous kernel.
inline cudaError_t waits_for_previous_kernel(bool& waits) {
  int device = 0;
  int major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  }
  waits = major >= 9;
  return error;
}

inline cudaLaunchAttribute programmatic_launch() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

}  // namespace pyflash
