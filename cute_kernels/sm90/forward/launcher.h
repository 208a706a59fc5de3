// Launches the family's kernels: clusters, early launch.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "cute_kernels/registry.h"
#include "cute_kernels/sm90/driver.h"
#include "cute_kernels/sm90/forward/plan.h"

namespace pyflash::sm90 {

inline cudaError_t plan_launch(Plan& plan, Config const& config, RowOfAnyOp const& row,
                               Forward::Params const& problem) {
  plan = {};
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
  return make_plan(plan, config, problem, n_resident, tensor_map_encoder());
}

// given: the kernel's params, of the plan.
inline cudaError_t launch_plan(Plan const& plan, void const* kernel, RowOfAnyOp const& row,
                               void* given, cudaStream_t stream) {
  return launch_early({.kernel = kernel,
                       .n_ctas = plan.n_ctas,
                       .n_threads = row.n_threads,
                       .smem_bytes = row.smem_bytes,
                       .cluster = plan.params.problem.cluster},
                      given, stream);
}

}  // namespace pyflash::sm90

namespace pyflash {

// kernel: a __global__ function, or a cudaKernel_t.
inline cudaError_t launch_kernel(void const* kernel, FlashForwardSm90Config const& config,
                                 ConfigMapRow<Forward> const& row, Forward::Params const& params,
                                 cudaStream_t stream) {
  sm90::Plan plan;
  cudaError_t const error = sm90::plan_launch(plan, config, row, params);
  return error == cudaSuccess ? sm90::launch_plan(plan, kernel, row, &plan.params, stream) : error;
}

inline ProblemRefusal<Forward> refusal_of(FlashForwardSm90Config const&) {
  return [](ConfigMapRow<Forward> const& row, Forward::Params const& params) {
    return sm90::refusal(std::get<FlashForwardSm90Config>(row.config), params);
  };
}

}  // namespace pyflash
