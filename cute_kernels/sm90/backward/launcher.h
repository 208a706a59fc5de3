// Launches the family's kernels, early.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "cute_kernels/registry.h"
#include "cute_kernels/sm90/backward/plan.h"
#include "cute_kernels/sm90/driver.h"

namespace pyflash {

namespace sm90::backward {

// params: with the shape of the config, and its workspace.
inline cudaError_t plan_launch(Plan& plan, Config const& config, ConfigMapRow<Backward> const& row,
                               BackwardParams const& params) {
  int64_t n_resident = 0;
  cudaError_t error = ensure_context();
  if (error == cudaSuccess) {
    error = count_resident_ctas(n_resident, row);
  }
  if (error == cudaSuccess) {
    error = make_plan(plan, config, params, n_resident, tensor_map_encoder());
  }
  return error;
}

// kernel: a __global__ function, or a cudaKernel_t. given: its params, of the plan.
inline cudaError_t launch_plan(Plan const& plan, void const* kernel,
                               ConfigMapRow<Backward> const& row, void* given,
                               cudaStream_t stream) {
  return launch_early({.kernel = kernel,
                       .n_ctas = plan.n_ctas,
                       .n_threads = row.n_threads,
                       .smem_bytes = row.smem_bytes,
                       .cluster = plan.params.cluster},
                      given, stream);
}

}  // namespace sm90::backward

inline cudaError_t launch_kernel(void const* kernel, FlashBackwardSm90Config const& config,
                                 ConfigMapRow<Backward> const& row, BackwardParams const& params,
                                 cudaStream_t stream) {
  sm90::backward::Plan plan;
  cudaError_t const error = sm90::backward::plan_launch(plan, config, row, params);
  if (error != cudaSuccess) {
    return error;
  }
  return sm90::backward::launch_plan(plan, kernel, row, &plan.params, stream);
}

inline ProblemRefusal<Backward> refusal_of(FlashBackwardSm90Config const&) {
  return [](ConfigMapRow<Backward> const& row, BackwardParams const& params) {
    return sm90::backward::refusal(std::get<FlashBackwardSm90Config>(row.config), params);
  };
}

}  // namespace pyflash
