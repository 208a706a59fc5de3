// The kernels of op backward that run before and after a config's own.
#include <cstdint>

#include <cuda_runtime_api.h>

#include "cute_kernels/backward.h"
#include "cute_kernels/common/backward_preprocess.cuh"
#include "cute_kernels/programmatic_launch.h"
#include "cute_kernels/sm80/backward/postprocess.cuh"
#include "cute_kernels/sm90/backward/postprocess.cuh"
#include "cute_kernels/sm90/driver.h"

namespace pyflash {
namespace {

template <class Element, int kColumns>
__global__ void __launch_bounds__(backward::kPreprocessThreads)
    preprocess_kernel(__grid_constant__ BackwardParams const params) {
#if defined(__CUDA_ARCH__)  // the host needs no body
  backward::preprocess_cta<Element, kColumns>(params);
#endif
}

template <class Element, int kColumns>
__global__ void __launch_bounds__(sm90::backward::kPostprocessThreads<kColumns>)
    postprocess_kernel(__grid_constant__ BackwardParams const params) {
// NOTE: on older devices no family runs whose sums lie so, nor does what this calls.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  sm90::backward::postprocess_cta<Element, kColumns>(params);
#endif
}

template <class Element, int kColumns>
__global__ void __launch_bounds__(sm80::backward::kPostprocessThreads)
    postprocess_neighbours_kernel(__grid_constant__ BackwardParams const params) {
#if defined(__CUDA_ARCH__)
  sm80::backward::postprocess_cta<Element, kColumns>(params);
#endif
}

struct PhaseKernel {
  void const* function;
  int n_threads;
  int smem_bytes;
};

// A CTA for each piece of the sums of dK and dV, and for each piece of queries of each head that it has.
int launch(PhaseKernel const& kernel, int64_t n_pieces, BackwardParams params, void* stream) {
  bool waits = false;
  if (cudaError_t const error = waits_for_previous_kernel(waits); error != cudaSuccess) {
    return error;
  }
  sm90::Grid const grid{.kernel = kernel.function,
                        .n_ctas = params.n_key_pieces() + n_pieces,
                        .n_threads = kernel.n_threads,
                        .smem_bytes = kernel.smem_bytes};
  if (waits || grid.n_ctas == 0) {
    return sm90::launch_early(grid, &params, static_cast<cudaStream_t>(stream));
  }
  void* arguments[] = {&params};
  return cudaLaunchKernel(grid.kernel, dim3(uint32_t(grid.n_ctas)), dim3(grid.n_threads), arguments,
                          grid.smem_bytes, static_cast<cudaStream_t>(stream));
}

template <class Element, int kColumns>
PhaseKernel preprocess() {
  return {reinterpret_cast<void const*>(preprocess_kernel<Element, kColumns>),
          backward::kPreprocessThreads, 0};
}

template <class Element, int kColumns>
PhaseKernel postprocess(BackwardParams const& params) {
  if (params.lanes_are_neighbours) {
    return {reinterpret_cast<void const*>(postprocess_neighbours_kernel<Element, kColumns>),
            sm80::backward::kPostprocessThreads, 0};
  }
  return {reinterpret_cast<void const*>(postprocess_kernel<Element, kColumns>),
          sm90::backward::kPostprocessThreads<kColumns>,
          int(sizeof(sm90::backward::PostprocessStorage<Element, kColumns>))};
}

// Calls run.operator()<Element, kColumns>().
template <class Run>
int with_types(BackwardParams const& params, DType dtype, Run const& run) {
  auto const with_element = [&]<class Element>() -> int {
    switch (params.columns) {
      case 64:
        return run.template operator()<Element, 64>();
      case 96:
        return run.template operator()<Element, 96>();
      case 128:
        return run.template operator()<Element, 128>();
      case 192:
        return run.template operator()<Element, 192>();
      case 256:
        return run.template operator()<Element, 256>();
      default:
        return cudaErrorInvalidValue;
    }
  };
  return dtype == DType::FP16 ? with_element.template operator()<cutlass::half_t>()
                              : with_element.template operator()<cutlass::bfloat16_t>();
}

}  // namespace

int preprocess_backward(BackwardParams const& params, DType dtype, void* stream) {
  return with_types(params, dtype, [&]<class Element, int kColumns>() {
    return launch(preprocess<Element, kColumns>(), backward::n_query_pieces(params), params,
                  stream);
  });
}

int postprocess_backward(BackwardParams const& params, DType dtype, void* stream) {
  return with_types(params, dtype, [&]<class Element, int kColumns>() -> int {
    return launch(postprocess<Element, kColumns>(params), backward::n_sum_pieces(params), params,
                  stream);
  });
}

}  // namespace pyflash
