// The loading warpgroup: one warp each for Q, K and V.
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/forward/kernel_params.h"
#include "cute_kernels/sm90/forward/problem.h"
#include "cute_kernels/sm90/forward/share_schedule.h"
#include "cute_kernels/sm90/pipeline.h"

namespace pyflash::sm90 {

using namespace cute;
using device::Site;

// NOTE: one call of `next`, which is inlined, where a loop's head and end would be two.
template <class Schedule, class Visit>
CUTE_DEVICE void for_each_tile(Schedule& schedule, Visit const& visit) {
  while (true) {
    Tile const tile = schedule.next();
    if (!tile.exists) {
      break;
    }
    visit(tile);
  }
}

// Loads the rows of each warpgroup. By one thread.
template <class Traits, ForwardFeatures kFeatures, class Params>
struct QLoader {
  using Slabs = typename Traits::Slabs;

  Params const& params;
  typename Traits::SharedStorage& smem;
  Sequences const sequences;
  device::SmemAddress const sQ;
  int const group;
  int const n_queries;  // of a warpgroup
  int const bytes;
  RingPosition<1> write;

  CUTE_DEVICE QLoader(Params const& params, typename Traits::SharedStorage& smem)
      : params(params),
        smem(smem),
        sequences(params.problem.q_sequences()),
        sQ(device::smem_address(smem.q)),
        group(Traits::kPackGqa ? params.order.by_group.divisor : 1),
        n_queries(TileSchedule<Traits, kFeatures>::queries_per_warpgroup(params)),
        bytes(group * n_queries * Traits::kHeadDim * sizeof(typename Traits::Element)) {}

  CUTE_DEVICE void load(Tile const& tile) {
    typename Traits::SmemLayoutQ const layout;  // (kMmaM,kHeadDim,kNConsumers)
    if (tile.blocks.size() == 0) {
      return;
    }
    CUTE_UNROLL
    for (int warpgroup = 0; warpgroup < Traits::kNConsumers; ++warpgroup) {
      device::Mbarrier& full = smem.pipeline_Q[warpgroup].acquire(write, bytes);
      CUTE_UNROLL
      for (int column = 0; column < Traits::kHeadDim; column += Traits::kSlab) {
        device::tma_load<device::CacheHint::kNormal>(
            params.q_map, full, Slabs::address(sQ, layout, 0, column, warpgroup), column, 0,
            tile.q_rows.begin + tile.first_query + warpgroup * n_queries, tile.head,
            sequences.tensor_batch(tile.batch));
      }
    }
    write.advance();
  }
};

// By one thread.
template <class Traits, ForwardFeatures kFeatures, class Variant>
CUTE_DEVICE void load_Q(ParamsWith<Variant> const& params, typename Traits::SharedStorage& smem,
                        ScheduleOf<Traits, kFeatures, Variant>& schedule) {
  QLoader<Traits, kFeatures, ParamsWith<Variant>> loader(params, smem);
  for_each_tile(schedule, [&](Tile const& tile) { loader.load(tile); });
}

// By one thread of each warp.
template <class Traits, ForwardFeatures kFeatures, class Variant>
CUTE_DEVICE void load_tiles(ParamsWith<Variant> const& params, typename Traits::SharedStorage& smem,
                            int warp) {
  constexpr int kBlockN = Traits::kBlockN;
  constexpr int kKVBytes = kBlockN * Traits::kHeadDim * sizeof(typename Traits::Element);
  // With packed heads a block of keys is one tile's alone, where there are few queries. Rows that are no whole lines share some
  // with the next head's.
  constexpr bool kReadOnce = Traits::kPackGqa && !kFeatures.predicated_head_dim;
  constexpr auto kHintKV = kReadOnce ? device::CacheHint::kReadOnce : device::CacheHint::kNormal;

  KvSource const kv = params.problem.kv();
  ScheduleOf<Traits, kFeatures, Variant> schedule(params, smem.share);

  // The blocks of K, or of V, last block first.
  auto load_blocks = [&](device::TensorMap const& map, Pipeline<Traits::kStages>& pipeline,
                         auto* memory) {
    using Slabs = typename Traits::Slabs;
    typename Traits::SmemLayoutKV const layout;  // (kBlockN,kHeadDim,kStages)
    device::SmemAddress const sKV = device::smem_address(memory);
    RingPosition<Traits::kStages> write;
    for_each_tile(schedule, [&](Tile const& tile) {
      int const head_kv = Traits::kPackGqa ? tile.head : params.order.by_group.div(tile.head);
      int const batch = kv.sequences.tensor_batch(tile.batch);
      auto const walk = schedule.walk(params, tile);
      CUTE_NO_UNROLL
      for (int place = tile.blocks.end - 1; place >= tile.blocks.begin; --place) {
        int const n_block = walk[place].number;
        device::Mbarrier& full = pipeline.acquire(write, kKVBytes);
        CUTE_UNROLL
        for (int column = 0; column < Traits::kHeadDim; column += Traits::kSlab) {
          device::tma_load<kHintKV>(map, full, Slabs::address(sKV, layout, 0, column, write.stage),
                                    column, tile.k_rows.begin + n_block * kBlockN, head_kv, batch);
        }
        write.advance();
      }
    });
  };

  if (warp == 0) {
    device::at(Site::Q_g2s);
    load_Q<Traits, kFeatures, Variant>(params, smem, schedule);
  } else if constexpr (Variant::kHasMask) {
    // NOTE: a walk by a mask leaves no registers for which of the two it is.
    if (warp == 1) {
      device::at(Site::K_g2s);
      load_blocks(params.k_map, smem.pipeline_K, smem.k);
    } else if (warp == 2) {
      device::at(Site::V_g2s);
      load_blocks(params.v_map, smem.pipeline_V, smem.v);
    }
  } else if (warp <= 2) {
    // NOTE: one call, so that both warps wait for the same instructions when the kernel begins.
    bool const is_K = warp == 1;
    device::at(is_K ? Site::K_g2s : Site::V_g2s);
    load_blocks(is_K ? params.k_map : params.v_map, is_K ? smem.pipeline_K : smem.pipeline_V,
                is_K ? smem.k : smem.v);
  }
}

// By each warp, of K and V in pages: lane i loads boxes i, i + 32, ... of a block, whose rows lie in one page each. The map has no
// page of number kNoPage: such a box brings zeros, and as many bytes.
template <class Traits, ForwardFeatures kFeatures, class Variant>
CUTE_DEVICE void load_paged_tiles(ParamsWith<Variant> const& params,
                                  typename Traits::SharedStorage& smem, int warp) {
  constexpr int kBlockN = Traits::kBlockN;
  constexpr int kLanes = 32;
  constexpr int kBoxes = (kBlockN + kLanes - 1) / kLanes;  // of a lane, at most
  constexpr int kKVBytes = kBlockN * Traits::kHeadDim * sizeof(typename Traits::Element);
  constexpr bool kReadOnce = Traits::kPackGqa && !kFeatures.predicated_head_dim;  // as above
  constexpr auto kHintKV = kReadOnce ? device::CacheHint::kReadOnce : device::CacheHint::kNormal;
  constexpr int kNoPage = -1;

  ScheduleOf<Traits, kFeatures, Variant> schedule(params, smem.share);

  auto load_blocks = [&](device::TensorMap const& map, Pipeline<Traits::kStages>& pipeline,
                         auto* memory) {
    using Slabs = typename Traits::Slabs;
    typename Traits::SmemLayoutKV const layout;  // (kBlockN,kHeadDim,kStages)
    device::SmemAddress const sKV = device::smem_address(memory);
    Pages const& pages = params.pages;
    int const lane = device::thread_idx() % kLanes;
    int const n_rows = box_rows(kBlockN, pages);
    bool const has_more = n_rows * kLanes < kBlockN;
    RingPosition<Traits::kStages> write;
    for_each_tile(schedule, [&](Tile const& tile) {
      int const head_kv = Traits::kPackGqa ? tile.head : params.order.by_group.div(tile.head);
      int const* const table = pages.table + tile.batch * pages.table_stride;
      int const first = first_key<kFeatures>(params, tile);
      auto const walk = schedule.walk(params, tile);
      // The page of a box of this lane, if some query of the tile attends a key of it. NOTE: other entries may hold anything.
      auto page_of = [&](int n_block, int box) {
        int const row = (box * kLanes + lane) * n_rows;
        int const key = n_block * kBlockN + row;
        if (row < kBlockN && key < tile.k_rows.length && key + n_rows > first) {
          return device::load(table + (key >> pages.log2_size));
        }
        device::leave_out();
        return kNoPage;
      };
      int page = tile.blocks.size() > 0 ? page_of(walk[tile.blocks.end - 1].number, 0) : kNoPage;
      CUTE_NO_UNROLL
      for (int place = tile.blocks.end - 1; place >= tile.blocks.begin; --place) {
        int const n_block = walk[place].number;
        // A block ahead, so that it is here in time.
        int const next_page =
            place > tile.blocks.begin ? page_of(walk[place - 1].number, 0) : kNoPage;
        int more_pages[kBoxes];
        if (has_more) {
          CUTE_UNROLL
          for (int box = 1; box < kBoxes; ++box) {
            more_pages[box] = page_of(n_block, box);
          }
        }
        if (lane == 0) {
          pipeline.acquire(write, kKVBytes);
        }
        device::sync_warp();  // the stage is empty
        auto load_box = [&](int row, int of_page) {
          if (row < kBlockN) {
            CUTE_UNROLL
            for (int column = 0; column < Traits::kHeadDim; column += Traits::kSlab) {
              device::tma_load<kHintKV>(
                  map, pipeline.full[write.stage],
                  Slabs::of_box(sKV, layout, row, column, write.stage), column,
                  (n_block * kBlockN + row) & ((1 << pages.log2_size) - 1), head_kv, of_page);
            }
          }
        };
        load_box(lane * n_rows, page);
        if (has_more) {
          CUTE_UNROLL
          for (int box = 1; box < kBoxes; ++box) {
            load_box((box * kLanes + lane) * n_rows, more_pages[box]);
          }
        }
        page = next_page;
        write.advance();
      }
    });
  };

  if (warp == 0) {
    if (device::elect_one()) {
      device::at(Site::Q_g2s);
      load_Q<Traits, kFeatures, Variant>(params, smem, schedule);
    }
  } else if (warp <= 2) {
    // NOTE: one call, so that both warps wait for the same instructions when the kernel begins.
    bool const is_K = warp == 1;
    device::at(is_K ? Site::K_g2s : Site::V_g2s);
    load_blocks(is_K ? params.k_map : params.v_map, is_K ? smem.pipeline_K : smem.pipeline_V,
                is_K ? smem.k : smem.v);
  }
}

}  // namespace pyflash::sm90
