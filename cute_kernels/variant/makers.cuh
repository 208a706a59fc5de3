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
  // Lanes that are neighbours change one load for the other, then four bytes of four of them change places.
  template <class Visit>
  static __device__ void for_each_of_rows(uint32_t const (&first)[kOwnLanes],
                                          uint32_t const (&second)[kOwnLanes], Visit const& visit) {
    auto from = [](uint32_t value, int lanes) {
      return __shfl_xor_sync(0xffffffffu, value, lanes);
    };
    int const lane = index();
    bool const is_odd = lane % 2 != 0;
    uint32_t const own = is_odd ? second[0] : first[0];
    uint32_t const half = own << (lane % 2 * kBitsOfVector);
    uint32_t const other = from(is_odd ? first[0] : second[0], 1);
    uint32_t const bytes = half | other << (kBitsOfVector - lane % 2 * kBitsOfVector);
    uint32_t const of_two = __byte_perm(bytes, from(bytes, 2), lane & 2 ? 0x3715 : 0x6240);
    uint32_t const of_four = __byte_perm(of_two, from(of_two, 4), lane & 4 ? 0x3276 : 0x5410);
    visit(lane, lane % 2, of_four);
  }
};

// Threads that judge blocks.
struct JudgingCta {
  using Warp = WarpLanes;
  static constexpr int kWarps = kJudgingThreads / WarpLanes::kLanes;

  JudgedBlock* judged;  // in shared memory

  template <class Visit>
  static __device__ void for_each(int count, Visit const& visit) {
    if (int(threadIdx.x) < count) {
      visit(int(threadIdx.x));
    }
  }
  static __device__ void sync() { __syncthreads(); }
  template <class Visit>
  static __device__ void for_each_of(int count, Visit const& visit) {
    // NOTE: in a register that the compiler knows to be uniform.
    int const warp = __shfl_sync(0xffffffffu, threadIdx.x / WarpLanes::kLanes, 0);
    for (int i = warp; i < count; i += kWarps) {
      visit(i);
    }
  }
  static __device__ void add(uint32_t& seen, uint32_t of_thread) {
    uint32_t const of_warp = __reduce_or_sync(0xffffffffu, of_thread);
    if (WarpLanes::index() == 0) {
      atomicOr(&seen, of_warp);
    }
  }
};
static_assert(kMostJudged <= kJudgingThreads);

// A CTA judges `count` blocks.
template <class Variant>
__global__ void __launch_bounds__(kJudgingThreads)
    judge_blocks(typename Variant::Params const captured,
                 PreparedTables<Variant::kPrepared> const tables, ListedProblem const problem,
                 BlockLists const lists, uint32_t* const bits, int const count) {
  __shared__ JudgedBlock judged[kMostJudged];
  int const first = int(blockIdx.x) * count;
  int const n_blocks = int(lists.n_lists()) * lists.blocks;
  judge_blocks_from<Variant>(captured, tables, problem, lists, bits, first,
                             smaller(count, n_blocks - first), JudgingCta{judged},
                             [](int const* address) { return *address; });
}

// What the warps of a list say of their blocks.
struct WarpVotes {
  uint32_t attended[kMostWarpsOfList];
  uint32_t whole[kMostWarpsOfList];
};

// The lanes that write a list: those of a warp, or of a CTA's warps.
struct ListLanes {
  int warps;
  WarpVotes* votes;  // in shared memory, where there are several warps

  __device__ int size() const { return warps * WarpLanes::kLanes; }
  __device__ int index() const { return int(threadIdx.x) % size(); }
  // The list of this thread.
  __device__ int64_t list() const {
    return int64_t(blockIdx.x) * (int(blockDim.x) / size()) + int(threadIdx.x) / size();
  }
  static __device__ int count(uint32_t word) { return __popc(word); }
  static __device__ int highest(uint32_t word) { return 31 - __clz(word); }

  template <class Visit>
  __device__ void for_each_vote(bool attended, bool whole, Visit const& visit) const {
    uint32_t const of_attended = WarpLanes::ballot(attended);
    uint32_t const of_whole = WarpLanes::ballot(whole);
    if (warps == 1) {
      visit(0, true, of_attended, of_whole);
      return;
    }
    int const warp = index() / WarpLanes::kLanes;
    if (WarpLanes::index() == 0) {
      votes->attended[warp] = of_attended;
      votes->whole[warp] = of_whole;
    }
    __syncthreads();  // the votes are visible, and what lists held was read
    for (int i = 0; i < warps; ++i) {
      visit(i * WarpLanes::kLanes, i == warp, votes->attended[i], votes->whole[i]);
    }
    __syncthreads();  // they were read
  }
};

// `warps` write a list, and the spans of its tile: one, or all of a CTA.
template <class Variant>
__global__ void list_blocks(typename Variant::Params const captured, ListedProblem const problem,
                            BlockLists const lists, BlockSpans const spans, int const warps) {
  __shared__ WarpVotes votes;
  ListLanes const lanes{warps, &votes};
  if (lanes.list() < lists.n_lists()) {
    write_list<Variant>(captured, problem, lists, spans, lanes.list(), lanes,
                        [](int const* address) { return *address; });
  }
}

// The same of queries.
template <class Variant>
__global__ void list_query_blocks(typename Variant::Params const captured,
                                  ListedProblem const problem, BlockLists const lists,
                                  int const warps) {
  __shared__ WarpVotes votes;
  ListLanes const lanes{warps, &votes};
  if (lanes.list() < lists.n_lists()) {
    write_query_list<Variant>(captured, problem, lists, lanes.list(), lanes,
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
  constexpr bool kOfQueries = std::is_same_v<Sort, TileSort>;
  Makers makers{};
  if constexpr (Variant::kPrepared > 0) {
    makers.prepare = reinterpret_cast<void const*>(prepare<Variant>);
  }
  if constexpr (kBits && kTakesBits<Variant>) {
    makers.judge = reinterpret_cast<void const*>(judge_blocks<Variant>);
  }
  if constexpr (Variant::kHasMask && kOfQueries) {
    makers.list = reinterpret_cast<void const*>(list_blocks<Variant>);
  } else if constexpr (Variant::kHasMask) {
    makers.list = reinterpret_cast<void const*>(list_query_blocks<Variant>);
  }
  if constexpr (kSorts && (kOfQueries ? kSortsTiles<Variant> : kSortsKeyTiles<Variant>)) {
    makers.sort = reinterpret_cast<void const*>(sort_tiles<Sort, kSortThreads>);
  }
  return makers;
}

}  // namespace pyflash::variant
