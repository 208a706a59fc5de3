// From a config and a problem to a launched kernel: the driver's encoder of tensor maps, the __global__ wrapper, its
// launcher and its row of the config map. Included by the emitted translation units only.
#pragma once

// NOTE: first, because it decides which MMA shapes CuTe defines.
#include "cute_kernels/sm90/forward_kernel.cuh"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cute_kernels/row.h"
#include "cute_kernels/sm90/plan.h"

namespace pyflash {

namespace sm90 {

// cuTensorMapEncodeTiled of the driver, without linking to libcuda; nullptr where the driver has none.
inline TensorMapEncoder tensor_map_encoder() {
  static auto const encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaError_t const error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &result);
    bool const found = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
    return reinterpret_cast<TensorMapEncoder>(found ? function : nullptr);
  }();
  return encoder;
}

}  // namespace sm90

template <FlashForwardSm90Config kConfig, ForwardFeatures kFeatures>
__global__ void __launch_bounds__(sm90::KernelTraits<kConfig>::kNThreads,
                                  sm90::KernelTraits<kConfig>::kCtasPerSm)
    flash_forward_sm90_kernel(__grid_constant__ sm90::KernelParams const params) {
  sm90::forward_cta<sm90::KernelTraits<kConfig>, kFeatures>(params);
}

// CTAs of a config that the current device runs at a time.
template <FlashForwardSm90Config kConfig>
cudaError_t count_resident_ctas(int64_t& n_ctas) {
  int device = 0;
  int n_sms = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, device);
  }
  n_ctas = int64_t(n_sms) * of_arch(kCtasPerSm<kConfig>, 90);
  return error;
}

// n_ctas: a multiple of cluster.
template <class Kernel>
cudaError_t launch_clusters(Kernel kernel, uint32_t n_ctas, uint32_t cluster, int n_threads,
                            int smem_bytes, cudaStream_t stream, sm90::KernelParams const& params) {
  constexpr uint32_t kPortableCluster = 8;
  if (cluster > kPortableCluster) {
    cudaError_t const error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) {
      return error;
    }
  }
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(n_ctas);
  launch.blockDim = dim3(n_threads);
  launch.dynamicSmemBytes = smem_bytes;
  launch.stream = stream;
  launch.attrs = &attribute;
  launch.numAttrs = 1;
  return cudaLaunchKernelEx(&launch, kernel, params);
}

template <FlashForwardSm90Config kConfig, ForwardFeatures kFeatures>
int launch_kernel(ForwardParams const& problem, cudaStream_t stream) {
  using Traits = sm90::KernelTraits<kConfig>;
  constexpr int kSmemBytes = sizeof(typename Traits::SharedStorage);
  if (sm90::is_empty<Traits>(problem)) {
    return cudaSuccess;
  }
  int64_t n_resident = 0;
  cudaError_t error = count_resident_ctas<kConfig>(n_resident);
  if (error != cudaSuccess) {
    return error;
  }
  sm90::Plan plan;
  error = sm90::make_plan<Traits>(plan, problem, kConfig.dtype, n_resident, Traits::kMaxCluster,
                                  sm90::tensor_map_encoder());
  if (error != cudaSuccess) {
    return error;
  }
  auto const kernel = flash_forward_sm90_kernel<kConfig, kFeatures>;
  // Per device and idempotent: the attribute belongs to the current device's copy of the kernel.
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes);
  if (error != cudaSuccess) {
    return error;
  }
  auto const n_ctas = static_cast<uint32_t>(plan.n_ctas);
  auto const cluster = static_cast<uint32_t>(plan.params.order.cluster);
  if (cluster == 1) {
    kernel<<<dim3(n_ctas), dim3(Traits::kNThreads), kSmemBytes, stream>>>(plan.params);
    return cudaGetLastError();
  }
  return launch_clusters(kernel, n_ctas, cluster, Traits::kNThreads, kSmemBytes, stream,
                         plan.params);
}

// With the first combination that covers the problem; where none does, the host has refused it.
template <FlashForwardSm90Config kConfig, ForwardFeatures... kBuilt>
int launch_forward(ForwardParams const& params, void* stream) {
  int error = cudaErrorNotSupported;
  run_first_that_covers<kBuilt...>(features_needed(params, kConfig.d_head), [&](auto features) {
    error = launch_kernel<kConfig, features.value>(params, static_cast<cudaStream_t>(stream));
  });
  return error;
}

template <FlashForwardSm90Config kConfig, ForwardFeatures... kBuilt>
ConfigMapRow forward_row(char const* short_form, BuiltFor const& built_for) {
  using Traits = sm90::KernelTraits<kConfig>;
  return make_row<kConfig, kBuilt...>(
      short_form, built_for, Traits::kNThreads, sizeof(typename Traits::SharedStorage),
      launch_forward<kConfig, kBuilt...>, sm90::refusal<Traits>,
      {.packs_heads = Traits::kPackGqa, .max_cluster = Traits::kMaxCluster});
}

}  // namespace pyflash
