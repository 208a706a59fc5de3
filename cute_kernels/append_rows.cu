// Writes rows of K and V into pages: a thread for each 16 bytes of a row of K and of V (append.h).
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>

#include "cute_kernels/append.h"

namespace pyflash {
namespace {

constexpr int kThreads = 256;
constexpr int kMostCtas = 1 << 20;

__global__ void __launch_bounds__(kThreads)
    append_rows_kernel(__grid_constant__ AppendParams const params) {
  int const step = gridDim.x * blockDim.y;
  for (int row = blockIdx.x * blockDim.y + threadIdx.y; row < params.n_rows; row += step) {
    for (unsigned i = threadIdx.x; i < params.vectors_of_row(); i += blockDim.x) {
      params.copy(row, i);
    }
  }
}

}  // namespace
}  // namespace pyflash

int pyflash_append_rows(pyflash::AppendParams const* params, void* stream) {
  using namespace pyflash;
  // Threads along a row are a power of two, of which fewer than half are idle.
  auto const n_along = std::min<unsigned>(std::bit_ceil(params->vectors_of_row()), kThreads);
  cudaLaunchConfig_t launch{};
  launch.blockDim = dim3(n_along, kThreads / n_along);
  launch.gridDim = dim3(smaller(ceil_div(params->n_rows, int(launch.blockDim.y)), kMostCtas));
  launch.stream = static_cast<cudaStream_t>(stream);
  return cudaLaunchKernelEx(&launch, append_rows_kernel, *params);
}
