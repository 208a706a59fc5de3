// What launchers of kernels with a variant share: the tables of prepared fields and the lists of blocks, each made by a kernel
// of their own.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "cute_kernels/row.h"
#include "cute_kernels/variant/kernel_params.h"
#include "cute_kernels/variant/tile_order.h"
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

template <class Variant>
__global__ void prepare(typename Variant::Params const captured, ListedProblem const problem,
                        int* const memory, int64_t const size) {
  int64_t const index = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index < size) {
    write_prepared<Variant>(captured, problem, memory, index,
                            [](int const* address) { return *address; });
  }
}

// Launches what writes the tables at `memory`.
template <class Variant>
cudaError_t make_prepared(typename Variant::Params const& captured, ListedProblem const& problem,
                          int* memory, cudaStream_t stream) {
  if constexpr (Variant::kPrepared > 0) {
    constexpr int kThreads = 256;
    int64_t const size = prepared_size<Variant>(problem);
    int64_t const n_blocks = ceil_div(size, int64_t(kThreads));
    if (n_blocks > INT32_MAX) {
      return cudaErrorInvalidConfiguration;
    }
    if (n_blocks > 0) {
      prepare<Variant>
          <<<unsigned(n_blocks), kThreads, 0, stream>>>(captured, problem, memory, size);
      return cudaGetLastError();
    }
  }
  return cudaSuccess;
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

// A thread finds the place of a tile in its group.
template <class Sort, int kThreads>
__global__ void sort_tiles(Sort const sort, int* const list) {
  __shared__ int lengths[kMostSortedTiles];
  int const n = sort.group_size();
  int const chunks = ceil_div(n, kThreads);
  int const group = blockIdx.x / chunks;
  for (int tile = threadIdx.x; tile < n; tile += kThreads) {
    lengths[tile] = sort.length(group, tile);
  }
  __syncthreads();  // the lengths are visible
  int const tile = blockIdx.x % chunks * kThreads + threadIdx.x;
  if (tile < n) {
    sort.write(list, group, tile, lengths);
  }
}

// Launches what writes the order of tiles at `memory`, where there are some, and no more than are sorted.
template <class Sort>
cudaError_t make_order(int const*& order, Sort const& sort, int* memory, cudaStream_t stream) {
  constexpr int kThreads = 256;
  int64_t const n_ctas = int64_t(ceil_div(sort.group_size(), kThreads)) * sort.n_groups();
  if (n_ctas == 0 || n_ctas > INT32_MAX) {
    return cudaSuccess;
  }
  sort_tiles<Sort, kThreads><<<unsigned(n_ctas), kThreads, 0, stream>>>(sort, memory);
  order = memory;
  return cudaGetLastError();
}

// The ints that are made for a kernel of op forward: tables, lists, and the order of tiles where the family takes one.
template <class Variant>
struct Memory {
  int64_t prepared = 0;
  int64_t lists = 0;
  int64_t order = 0;

  Memory(ListedProblem const& problem, bool takes_order)
      : prepared(prepared_size<Variant>(problem)) {
    if constexpr (Variant::kHasMask) {
      BlockLists const of_tiles = problem.lists<Variant>();
      lists = ceil_div(of_tiles.size(), int64_t(2)) * 2;  // so that the order is aligned
      if (kSortsTiles<Variant> && takes_order) {
        order = TileSort{of_tiles, problem.batch}.size();
      }
    }
  }
};

// Runs a config's kernel with a variant. Overloads of the family launch it, and say whether it takes an order of tiles.
template <auto kConfig, class Variant>
int run(VariantRow const& row, size_t i, Forward::Params const& params, Arguments const& arguments,
        int* memory, void* stream) {
  auto const on = static_cast<cudaStream_t>(stream);
  auto const captured = Variant::params_of(arguments);
  ListedProblem const problem = listed_problem(kConfig, params);
  Memory<Variant> const sizes(problem, takes_order(kConfig, params));
  Made<Variant> made{{}, prepared_tables<Variant>(problem, memory)};
  cudaError_t error = make_prepared<Variant>(captured, problem, memory, on);
  if (error == cudaSuccess) {
    error = make_lists<Variant>(made.lists, captured, problem, memory + sizes.prepared, on);
  }
  if (error == cudaSuccess && sizes.order > 0) {
    error = make_order(made.order_of_tiles, TileSort{made.lists, problem.batch},
                       memory + sizes.prepared + sizes.lists, on);
  }
  if (error == cudaSuccess) {
    error = launch_variant<Variant>(row.row.kernels.data[i], kConfig, row.row, params, captured,
                                    made, on);
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
          .n_ints = [](Forward::Params const& params) -> int64_t {
            Memory<Variant> const sizes(listed_problem(kConfig, params),
                                        takes_order(kConfig, params));
            return sizes.prepared + sizes.lists + sizes.order;
          },
          .run = run<kConfig, Variant>};
}

#endif

}  // namespace pyflash::variant
