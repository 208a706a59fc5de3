// Merges attention over parts of the keys: a thread for each eight columns of a row (merge_states.h).
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "cute_kernels/merge_states.h"
#include "cute_kernels/programmatic_launch.h"

namespace pyflash {
namespace {

constexpr int kThreads = 128;

template <class Element>
__global__ void __launch_bounds__(kThreads)
    merge_states_kernel(__grid_constant__ MergeParams const params) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();            // launched while the last part is computed
  cudaTriggerProgrammaticLaunchCompletion();  // and the next kernel while parts are merged
#endif
  unsigned const i = blockIdx.x * kThreads + threadIdx.x;
  if (i < params.n) {
    params.merge<Element>(i);
  }
}

}  // namespace
}  // namespace pyflash

int pyflash_merge_states(pyflash::MergeParams const* params, void* stream) {
  using namespace pyflash;
  bool waits = false;
  if (cudaError_t const error = waits_for_previous_kernel(waits); error != cudaSuccess) {
    return error;
  }
  cudaLaunchAttribute attribute = programmatic_launch();
  cudaLaunchConfig_t launch{};
  launch.blockDim = dim3(kThreads);
  launch.gridDim = dim3(ceil_div(params->n, unsigned(kThreads)));
  launch.stream = static_cast<cudaStream_t>(stream);
  launch.attrs = &attribute;
  launch.numAttrs = waits && supports_programmatic_launch() ? 1 : 0;
  auto const kernel = params->dtype == DType::FP16 ? merge_states_kernel<__half>
                                                   : merge_states_kernel<__nv_bfloat16>;
  return cudaLaunchKernelEx(&launch, kernel, *params);
}
