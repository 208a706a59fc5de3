// What launchers of kernels with a variant share: the lists of blocks, made by a kernel of their own.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "cute_kernels/row.h"
#include "cute_kernels/variant/kernel_params.h"
#include "cute_kernels/variant_row.h"

namespace pyflash::variant {

#if defined(__CUDACC__)

struct WarpLanes {
  static constexpr int kLanes = 32;
  static __device__ int index() { return threadIdx.x % kLanes; }
  static __device__ uint32_t ballot(bool value) { return __ballot_sync(0xffffffffu, value); }
  static __device__ int count(uint32_t word) { return __popc(word); }
};

// A warp writes a list.
template <class Variant>
__global__ void list_blocks(typename Variant::Params const captured, ListedProblem const problem,
                            BlockLists const lists) {
  int64_t const index = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / WarpLanes::kLanes;
  if (index < lists.n_lists()) {
    write_list<Variant>(captured, problem, lists, index, WarpLanes{},
                        [](int const* address) { return *address; });
  }
}

// Launches what writes the lists at `memory`; there is nothing to do without a mask.
template <class Variant>
cudaError_t make_lists(BlockLists& lists, typename Variant::Params const& captured,
                       ListedProblem const& problem, int* memory, cudaStream_t stream) {
  lists = {};
  if constexpr (Variant::kHasMask) {
    lists = problem.lists<Variant>();
    lists.data = memory;
    constexpr int kWarps = 4;
    int64_t const n_blocks = ceil_div(lists.n_lists(), kWarps);
    if (n_blocks > INT32_MAX) {
      return cudaErrorInvalidConfiguration;
    }
    if (n_blocks > 0) {
      list_blocks<Variant>
          <<<unsigned(n_blocks), kWarps * WarpLanes::kLanes, 0, stream>>>(captured, problem, lists);
      return cudaGetLastError();
    }
  }
  return cudaSuccess;
}

// Runs a config's kernel with a variant. launch_variant: an overload of the family launches it.
template <auto kConfig, class Variant>
int run(VariantRow const& row, size_t i, Forward::Params const& params, Arguments const& arguments,
        int* memory, void* stream) {
  auto const on = static_cast<cudaStream_t>(stream);
  auto const captured = Variant::params_of(arguments);
  BlockLists lists;
  cudaError_t error =
      make_lists<Variant>(lists, captured, listed_problem(kConfig, params), memory, on);
  if (error == cudaSuccess) {
    error = launch_variant<Variant>(row.row.kernels.data[i], kConfig, row.row, params, captured,
                                    lists, on);
  }
  if (error == cudaSuccess && leaves_parts(params)) {
    return merge_splits(params, row.row.dtype, stream);
  }
  return error;
}

// The row of a config whose plain row is `row`.
template <auto kConfig, class Variant>
VariantRow make_variant_row(char const* key, ConfigMapRow<Forward> const& row) {
  return {.key = key,
          .most_positions = Variant::kMostPositions,
          .row = row,
          .lists = [](Forward::Params const& params) -> int64_t {
            if constexpr (Variant::kHasMask) {
              return listed_problem(kConfig, params).template lists<Variant>().size();
            }
            return 0;
          },
          .run = run<kConfig, Variant>};
}

#endif

}  // namespace pyflash::variant
