// Finds where rows of packed queries go in pages: a thread for each (slots.h).
#include <cuda_runtime_api.h>

#include "cute_kernels/slots.h"

namespace pyflash {
namespace {

constexpr int kThreads = 128;
constexpr int kMostCtas = 1 << 20;

__global__ void __launch_bounds__(kThreads)
    find_slots_kernel(__grid_constant__ SlotParams const params) {
  int const step = gridDim.x * kThreads;
  for (int row = blockIdx.x * kThreads + threadIdx.x; row < params.n_rows; row += step) {
    params.slots[row] = params.slot(row);
  }
}

}  // namespace
}  // namespace pyflash

int pyflash_find_slots(pyflash::SlotParams const* params, void* stream) {
  using namespace pyflash;
  cudaLaunchConfig_t launch{};
  launch.blockDim = dim3(kThreads);
  launch.gridDim = dim3(smaller(ceil_div(params->n_rows, kThreads), kMostCtas));
  launch.stream = static_cast<cudaStream_t>(stream);
  return cudaLaunchKernelEx(&launch, find_slots_kernel, *params);
}
