// Launches the family's kernels: clusters, early launch.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

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
  return launch_early({.kernel = kernel,
                       .n_ctas = plan.n_ctas,
                       .n_threads = row.n_threads,
                       .smem_bytes = row.smem_bytes,
                       .cluster = problem.cluster},
                      &plan.params, stream);
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
