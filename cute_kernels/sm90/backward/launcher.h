// Launches the family's kernels, early.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "cute_kernels/registry.h"
#include "cute_kernels/sm90/backward/plan.h"
#include "cute_kernels/sm90/driver.h"

namespace pyflash {

// kernel: a __global__ function, or a cudaKernel_t. params: with the shape of the config, and its workspace.
inline cudaError_t launch_kernel(void const* kernel, FlashBackwardSm90Config const& config,
                                 ConfigMapRow<Backward> const& row, BackwardParams const& params,
                                 cudaStream_t stream) {
  int64_t n_resident = 0;
  cudaError_t error = sm90::ensure_context();
  if (error == cudaSuccess) {
    error = sm90::count_resident_ctas(n_resident, row);
  }
  sm90::backward::Plan plan;
  if (error == cudaSuccess) {
    error = sm90::backward::make_plan(plan, config, params, n_resident, sm90::tensor_map_encoder());
  }
  if (error != cudaSuccess) {
    return error;
  }
  return sm90::launch_early({.kernel = kernel,
                             .n_ctas = plan.n_ctas,
                             .n_threads = row.n_threads,
                             .smem_bytes = row.smem_bytes},
                            &plan.params, stream);
}

inline ProblemRefusal<Backward> refusal_of(FlashBackwardSm90Config const&) {
  return [](ConfigMapRow<Backward> const& row, BackwardParams const& params) {
    return sm90::backward::refusal(std::get<FlashBackwardSm90Config>(row.config), params);
  };
}

}  // namespace pyflash
