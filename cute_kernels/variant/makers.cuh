// The kernels of Makers, and which of them a launch may need: to name one is to compile it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cute_kernels/variant/block_lists.h"
#include "cute_kernels/variant/makers.h"
#include "cute_kernels/variant/mask_bits.h"
#include "cute_kernels/variant/prepared_tables.h"
#include "cute_kernels/variant/query_lists.h"
#include "cute_kernels/variant/tile_order.h"

namespace pyflash::variant {

struct WarpLanes {
  static constexpr int kLanes = 32;
  static __device__ int index() { return threadIdx.x % kLanes; }
  static __device__ uint32_t ballot(bool value) { return __ballot_sync(0xffffffffu, value); }
  static __device__ int count(uint32_t word) { return __popc(word); }
  static __device__ int highest(uint32_t word) { return 31 - __clz(word); }

  static constexpr int kOwnLanes = 1;
  static __device__ int own(int) { return 0; }
  template <class Visit>
  static __device__ void for_each_own_lane(Visit const& visit) {
    visit(index());
  }
  template <int kVotes, class Shows>
  static __device__ void vote(uint32_t (&votes)[kVotes], Shows const& shows) {
    bool shown[kVotes];
#pragma unroll
    for (int i = 0; i < kVotes; ++i) {
      shown[i] = shows(i, index());
    }
#pragma unroll
    for (int i = 0; i < kVotes; ++i) {
      votes[i] = ballot(shown[i]);
    }
  }
  template <class Visit>
  static __device__ void for_each_of_quad(uint32_t const (&votes)[4], Visit const& visit) {
    int const lane = index() % 4;
    int const two = lane | (4 + lane) << 4;
    uint32_t const low = __byte_perm(votes[0], votes[1], two);
    uint32_t const high = __byte_perm(votes[2], votes[3], two);
    if (index() < 4) {
      visit(lane, __byte_perm(low, high, 0x5410));
    }
  }
};

// Threads that judge a block.
struct JudgingCta {
  using Warp = WarpLanes;

  template <class Judge>
  static __device__ Shown agreed(Judge const& judge) {
    __shared__ Shown shown;
    if (is_first()) {
      shown = judge();
    }
    __syncthreads();  // it is visible
    return shown;
  }
  static constexpr int kWarps = kJudgingThreads / WarpLanes::kLanes;
  template <int kAtOnce, class Visit>
  static __device__ void for_each_rows(int rows, Visit const& visit) {
    // NOTE: in a register that the compiler knows to be uniform.
    int const warp = __shfl_sync(0xffffffffu, threadIdx.x / WarpLanes::kLanes, 0);
    for (int row = warp; row < rows; row += kAtOnce * kWarps) {
      visit(row, kWarps);
    }
  }
  static __device__ SeenPairs of_all(SeenPairs const& seen) {
    return {__syncthreads_or(seen.shown) != 0, __syncthreads_or(seen.hidden) != 0};
  }
  static __device__ bool is_first() { return threadIdx.x == 0; }
};

// A CTA judges a block.
template <class Variant>
__global__ void __launch_bounds__(kJudgingThreads)
    judge_blocks(typename Variant::Params const captured,
                 PreparedTables<Variant::kPrepared> const tables, ListedProblem const problem,
                 BlockLists const lists, uint32_t* const bits) {
  judge_block<Variant>(captured, tables, problem, lists, bits, int64_t(blockIdx.x), JudgingCta{},
                       [](int const* address) { return *address; });
}

// A warp writes a list, or the span of a warpgroup.
template <class Variant>
__global__ void list_blocks(typename Variant::Params const captured, ListedProblem const problem,
                            BlockLists const lists, BlockSpans const spans) {
  int64_t const index = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / WarpLanes::kLanes;
  if (index < lists.n_lists() * spans.parts()) {
    write_list<Variant>(captured, problem, lists, spans, index, WarpLanes{},
                        [](int const* address) { return *address; });
  }
}

// A warp writes a list.
template <class Variant>
__global__ void list_query_blocks(typename Variant::Params const captured,
                                  ListedProblem const problem, BlockLists const lists) {
  int64_t const index = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / WarpLanes::kLanes;
  if (index < lists.n_lists()) {
    write_query_list<Variant>(captured, problem, lists, index, WarpLanes{},
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

// kSorts: the family takes tiles in an order, which Sort makes. kBits: it takes masks as bits.
template <class Variant, class Sort, bool kSorts, bool kBits = false>
Makers makers() {
  Makers makers{};
  if constexpr (Variant::kPrepared > 0) {
    makers.prepare = reinterpret_cast<void const*>(prepare<Variant>);
  }
  if constexpr (kBits && kTakesBits<Variant>) {
    makers.judge = reinterpret_cast<void const*>(judge_blocks<Variant>);
  }
  if constexpr (Variant::kHasMask && std::is_same_v<Sort, TileSort>) {
    makers.list = reinterpret_cast<void const*>(list_blocks<Variant>);
  } else if constexpr (Variant::kHasMask) {
    makers.list = reinterpret_cast<void const*>(list_query_blocks<Variant>);
  }
  if constexpr (kSorts && kSortsTiles<Variant>) {
    makers.sort = reinterpret_cast<void const*>(sort_tiles<Sort, kSortThreads>);
  }
  return makers;
}

}  // namespace pyflash::variant
