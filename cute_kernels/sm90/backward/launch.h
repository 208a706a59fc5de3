// Launches the three kernels of a backward, each early, behind the one before.
#pragma once

#include <cuda_runtime_api.h>

#include "cute_kernels/programmatic_launch.h"
#include "cute_kernels/sm90/backward/kernels.h"
#include "cute_kernels/sm90/backward/plan.h"
#include "cute_kernels/sm90/driver.h"

namespace pyflash::sm90::backward {

template <class Params>
cudaError_t launch_kernel(void (*kernel)(Params const), int64_t n_ctas, int n_threads,
                          size_t smem_bytes, Params& params, cudaStream_t stream) {
  if (n_ctas == 0) {
    return cudaSuccess;
  }
  auto const* const function = reinterpret_cast<void const*>(kernel);
  cudaError_t const error =
      cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, int(smem_bytes));
  if (error != cudaSuccess) {
    return error;
  }
  cudaLaunchAttribute attribute = programmatic_launch();
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<uint32_t>(n_ctas));
  launch.blockDim = dim3(n_threads);
  launch.dynamicSmemBytes = smem_bytes;
  launch.stream = stream;
  launch.attrs = &attribute;
  launch.numAttrs = supports_programmatic_launch() ? 1 : 0;
  void* arguments[] = {&params};
  return cudaLaunchKernelExC(&launch, function, arguments);
}

// problem: with its workspace. n_resident: CTAs that run at a time.
template <FlashBackwardSm90Config kConfig, BackwardFeatures kFeatures>
cudaError_t launch_backward(BackwardParams const& problem, int64_t n_resident,
                            cudaStream_t stream) {
  using Traits = KernelTraits<kConfig>;
  KernelParams params{};
  params.problem = problem;
  int64_t const tiles = n_tiles(kConfig, problem);
  cudaError_t error = ensure_context();
  if (error == cudaSuccess) {
    error = launch_kernel(flash_backward_preprocess_kernel<kConfig>, n_query_blocks(problem),
                          kPreprocessThreads, 0, params.problem, stream);
  }
  if (error == cudaSuccess && tiles > 0) {
    error = set_tensor_maps(params, kConfig, tensor_map_encoder());
  }
  if (error == cudaSuccess && tiles > 0) {
    set_order(params, kConfig, n_resident);
    error = launch_kernel(flash_backward_sm90_kernel<kConfig, kFeatures>, tiles, Traits::kNThreads,
                          sizeof(typename Traits::SharedStorage), params, stream);
  }
  if (error == cudaSuccess) {
    error = launch_kernel(flash_backward_postprocess_kernel<kConfig>, n_query_blocks(problem),
                          Traits::kNConsumers * kWarpgroup, sizeof(PostprocessStorage<Traits>),
                          params.problem, stream);
  }
  return error;
}

}  // namespace pyflash::sm90::backward
