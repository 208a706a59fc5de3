// K and V in pages that are no TMA boxes: their rows are gathered by cp.async, 16 bytes a lane, to where a box would have put them.
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/forward/kernel_params.h"
#include "cute_kernels/sm90/forward/load.h"
#include "cute_kernels/sm90/forward/problem.h"
#include "cute_kernels/sm90/forward/share_schedule.h"
#include "cute_kernels/sm90/pipeline.h"

namespace pyflash::sm90 {

using namespace cute;
using device::Site;

// K has two warps of the loading warpgroup, and V has two.
inline constexpr int kGatherers = 2;

// The arrivals that fill a stage of K, or of V.
template <ForwardFeatures kFeatures>
inline constexpr int kLoadersOfStage = kFeatures.gathered_kv ? kGatherers : 1;

// How a warp copies its rows of a block: lanes beside each other have a row of a slab, so that each copy is of kRows whole rows. The
// rows of copy c are looked up by lane c % kAbreast of each group of kAbreast lanes, for the others to have them by one shuffle.
template <class Traits>
struct WarpCopies {
  static constexpr int kLanes = 32;
  static constexpr int kRowsOfWarp = Traits::kBlockN / kGatherers;
  static constexpr int kUnit = Traits::Slabs::kUnit;      // elements of a lane's copy
  static constexpr int kAbreast = Traits::kSlab / kUnit;  // lanes
  static constexpr int kRows = kLanes / kAbreast;         // of a copy
  static constexpr int kCopies = kRowsOfWarp / kRows;     // of a block, in each slab
  static_assert(kCopies * kRows == kRowsOfWarp);
  static constexpr int kLookups = (kRowsOfWarp + kLanes - 1) / kLanes;  // of a lane
  static constexpr int kSlabBytes = Traits::kBlockN * Traits::kSlab * kElementBytes;
  static constexpr int kStageBytes = Traits::kBlockN * Traits::kHeadDim * kElementBytes;

  int lane;
  int first_row;  // of the warp's

  // The row that a lane looks up, counted from the warp's first.
  CUTE_DEVICE int row_of_lookup(int i) const {
    return i * kLanes + lane % kAbreast * kRows + lane / kAbreast;
  }
  CUTE_DEVICE int row() const { return first_row + lane / kAbreast; }  // of copy 0
  CUTE_DEVICE int column() const { return lane % kAbreast * kUnit; }
};

// By each warp. Rows that no query of the tile attends, and those of pages that do not exist, become zeros.
template <class Traits, ForwardFeatures kFeatures, class Variant>
CUTE_DEVICE void gather_tiles(ParamsWith<Variant> const& params,
                              typename Traits::SharedStorage& smem, int warp) {
  using Element = typename Traits::Element;
  using Slabs = typename Traits::Slabs;
  using Copies = WarpCopies<Traits>;
  constexpr int kBlockN = Traits::kBlockN;
  constexpr int kNoPage = -1;

  ScheduleOf<Traits, kFeatures, Variant> schedule(params, smem.share);
  QLoader<Traits, kFeatures, ParamsWith<Variant>> loader_of_Q(params, smem);
  auto load_Q = [&](Tile const& tile) {
    device::at(Site::Q_g2s);
    if (device::thread_idx() % 32 == 0) {  // the one that knows where it is in the ring
      loader_of_Q.load(tile);
    }
    device::at(Site::V_g2s);
  };

  auto gather_blocks = [&](bool is_K, RowSteps const& steps, Pipeline<Traits::kStages>& pipeline,
                           Element* memory, int part) {
    typename Traits::SmemLayoutKV const layout;  // (kBlockN,kHeadDim,kStages)
    Pages const& pages = params.pages;
    Copies const copies{device::thread_idx() % Copies::kLanes, part * Copies::kRowsOfWarp};
    device::SmemAddress const sKV =
        Slabs::address(device::smem_address(memory), layout, copies.row(), copies.column(), 0);
    RingPosition<Traits::kStages> write;
    RingPosition<Traits::kStages> arriving;
    bool is_arriving = false;  // a block whose copies may be under way
    auto finish_arriving = [&] {
      if (is_arriving) {
        device::async_wait<0>();
        pipeline.fill(arriving);
        is_arriving = false;
      }
    };
    for_each_tile(schedule, [&](Tile const& tile) {
      int const head_kv = Traits::kPackGqa ? tile.head : params.order.by_group.div(tile.head);
      Element const* const first_row = is_K ? params.problem.template k_at<Element>(0, head_kv, 0)
                                            : params.problem.template v_at<Element>(0, head_kv, 0);
      auto const* const head = reinterpret_cast<char const*>(first_row + copies.column());
      int const* const table = pages.table + tile.batch * pages.table_stride;
      int const first = first_key<kFeatures>(params, tile);
      auto const walk = schedule.walk(params, tile);
      // The page of a row, if some query of the tile attends its key. NOTE: other entries may hold anything.
      auto page_of = [&](int n_block, int lookup) {
        int const row = copies.row_of_lookup(lookup);
        int const key = n_block * kBlockN + copies.first_row + row;
        if (row < Copies::kRowsOfWarp && first <= key && key < tile.k_rows.length) {
          return device::load(table + params.by_page.div(key));
        }
        device::leave_out();
        return kNoPage;
      };
      auto steps_to = [&](int n_block, int lookup, int page) {
        int const key = n_block * kBlockN + copies.first_row + copies.row_of_lookup(lookup);
        int const row = key - params.by_page.div(key) * pages.size;
        return pages.exists(page) ? page * steps.of_page + row * steps.of_row : kNoRow;
      };
      int next_pages[Copies::kLookups];
      CUTE_UNROLL
      for (int i = 0; i < Copies::kLookups; ++i) {
        next_pages[i] =
            tile.blocks.size() > 0 ? page_of(walk[tile.blocks.end - 1].number, i) : kNoPage;
      }
      finish_arriving();  // the last block of the tile before
      if (warp == 0) {
        load_Q(tile);
      }
      CUTE_NO_UNROLL
      for (int place = tile.blocks.end - 1; place >= tile.blocks.begin; --place) {
        int const n_block = walk[place].number;
        uint32_t rows[Copies::kLookups];
        CUTE_UNROLL
        for (int i = 0; i < Copies::kLookups; ++i) {
          rows[i] = steps_to(n_block, i, next_pages[i]);
          // A block ahead, so that it is here in time.
          next_pages[i] = place > tile.blocks.begin ? page_of(walk[place - 1].number, i) : kNoPage;
        }
        // Consumers need what is arriving before they can empty a stage; where one is empty, its copies begin first.
        if (is_arriving && !pipeline.seems_empty(write)) {
          finish_arriving();
        }
        pipeline.wait_until_empty(write);
        device::SmemAddress const stage = sKV + write.stage * Copies::kStageBytes;
        CUTE_UNROLL
        for (int copy = 0; copy < Copies::kCopies; ++copy) {
          uint32_t const row = device::bits_of_group<Copies::kAbreast>(
              rows[copy / Copies::kAbreast], copy % Copies::kAbreast);
          char const* const from = head + uint64_t(row) * steps.bytes;
          device::SmemAddress const to = Slabs::further(stage, copy * Copies::kRows, 0);
          CUTE_UNROLL
          for (int column = 0; column < Traits::kHeadDim; column += Traits::kSlab) {
            bool const is_of_head =
                !kFeatures.predicated_head_dim || column + copies.column() < params.problem.d_head;
            device::copy_or_zeros(to + column / Traits::kSlab * Copies::kSlabBytes,
                                  from + column * kElementBytes, row != kNoRow && is_of_head);
          }
        }
        device::async_commit();
        if (is_arriving) {
          device::async_wait<1>();
          pipeline.fill(arriving);
        }
        arriving = write;
        is_arriving = true;
        write.advance();
      }
    });
    finish_arriving();
  };

  // NOTE: one call, so that all warps wait for the same instructions when the kernel begins.
  bool const is_K = warp % 2 == 1;
  device::at(is_K ? Site::K_g2s : Site::V_g2s);
  gather_blocks(is_K, is_K ? params.k_steps : params.v_steps,
                is_K ? smem.pipeline_K : smem.pipeline_V, is_K ? smem.k : smem.v, warp / 2);
}

}  // namespace pyflash::sm90
