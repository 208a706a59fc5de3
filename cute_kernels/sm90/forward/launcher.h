// Launches the family's kernels: clusters, early launch.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "cute_kernels/common/clusters.h"
#include "cute_kernels/programmatic_launch.h"
#include "cute_kernels/registry.h"
#include "cute_kernels/sm90/driver.h"
#include "cute_kernels/sm90/forward/plan.h"

namespace pyflash::sm90 {

inline cudaError_t launch(void const* kernel, Config const& config, RowOfAnyOp const& row,
                          ForwardParams const& problem, cudaStream_t stream) {
  if (is_empty(config, problem)) {
    return cudaSuccess;
  }
  cudaError_t error = ensure_context();
  if (error != cudaSuccess) {
    return error;
  }
  int64_t n_resident = 0;
  error = count_resident_ctas(n_resident, row);
  if (error != cudaSuccess) {
    return error;
  }
  Plan plan;
  error = make_plan(plan, config, problem, n_resident, tensor_map_encoder());
  if (error != cudaSuccess) {
    return error;
  }
  // Per device and idempotent: the attributes belong to the current device's copy of the kernel.
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, row.smem_bytes);
  if (error != cudaSuccess) {
    return error;
  }
  int const cluster = problem.cluster;
  if (cluster > kPortableCluster) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error != cudaSuccess) {
      return error;
    }
  }
  cudaLaunchAttribute attributes[2]{};
  unsigned n_attributes = 0;
  if (supports_programmatic_launch()) {
    attributes[n_attributes++] = programmatic_launch();
  }
  if (cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[n_attributes++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<uint32_t>(plan.n_ctas));  // a multiple of cluster
  launch.blockDim = dim3(row.n_threads);
  launch.dynamicSmemBytes = row.smem_bytes;
  launch.stream = stream;
  launch.attrs = attributes;
  launch.numAttrs = n_attributes;
  void* arguments[] = {&plan.params};
  return cudaLaunchKernelExC(&launch, kernel, arguments);
}

}  // namespace pyflash::sm90

namespace pyflash {

// kernel: a __global__ function, or a cudaKernel_t.
inline cudaError_t launch_kernel(void const* kernel, FlashForwardSm90Config const& config,
                                 ConfigMapRow<Forward> const& row, ForwardParams const& params,
                                 cudaStream_t stream) {
  return sm90::launch(kernel, config, row, params, stream);
}

inline ProblemRefusal<Forward> refusal_of(FlashForwardSm90Config const&) {
  return [](ConfigMapRow<Forward> const& row, ForwardParams const& params) {
    return sm90::refusal(std::get<FlashForwardSm90Config>(row.config), params);
  };
}

}  // namespace pyflash
