// Makes the list of the tiles of packed sequences before the forward pass, by one CTA (common/tile_list.h), and that of the shares
// of the kernel that runs beside it, by another (common/shares.h).
#include <cuda_runtime_api.h>

#include "cute_kernels/common/tile_list.h"
#include "cute_kernels/forward.h"
#include "cute_kernels/programmatic_launch.h"

namespace pyflash {
namespace {

constexpr int kThreads = 1024;

struct CtaThreads {
  __device__ int index() const { return static_cast<int>(threadIdx.x); }
  __device__ int count() const { return kThreads; }
  __device__ void sync() const { __syncthreads(); }
  __device__ int add(int& number, int n) const { return atomicAdd(&number, n); }
};

struct GlobalLoader {
  __device__ int operator()(int const* address) const { return *address; }
};

__global__ void __launch_bounds__(kThreads, 1)
    list_tiles_kernel(__grid_constant__ TileListing const listing, int* list) {
  __shared__ TileListStorage shared;
  __shared__ ShareListStorage shared_by_shares;
#if __CUDA_ARCH__ >= 900
  // The kernel of the tiles starts while they are listed, and waits for the list itself. This one waits for whoever wrote the
  // lengths, or reads what memory the list takes.
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
  if (blockIdx.x == 0) {
    write_tile_list(listing, list, shared, CtaThreads{}, GlobalLoader{});
  } else {
    write_shares(listing.shares, listing.beside.list, shared_by_shares, CtaThreads{},
                 GlobalLoader{});
  }
}

}  // namespace

int list_tiles(ListedForwardParams const& params, DType, void* stream) {
  bool waits = false;
  if (cudaError_t const error = waits_for_previous_kernel(waits); error != cudaSuccess) {
    return error;
  }
  cudaLaunchAttribute attribute = programmatic_launch();
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(params.beside.list != nullptr ? 2 : 1);
  launch.blockDim = dim3(kThreads);
  launch.stream = static_cast<cudaStream_t>(stream);
  launch.attrs = &attribute;
  launch.numAttrs = waits && supports_programmatic_launch() ? 1 : 0;
  return cudaLaunchKernelEx(&launch, list_tiles_kernel, params.tile_listing(),
                            reinterpret_cast<int*>(params.tile_list));
}

}  // namespace pyflash
