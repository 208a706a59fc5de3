// FlashAttention forward with SM90 atoms: warpgroup MMAs (WGMMA) fed from shared memory by TMA (Dao 2023, algorithm 1;
// Shah et al. 2024).
//
// A tile is kBlockM rows of Q, of one head of one sequence; a CTA works through one tile, or, where it is persistent,
// through every tile of its share. Warpgroup 0 loads: one warp each for Q, K and V runs ahead through the blocks of all
// tiles, as far as there is room in shared memory; of K and V in pages a lane loads a box of one page, or gathers rows. The other
// warpgroups compute, each 64 rows of the tile:
//   S = Q K[j]^T                 fp32 accumulators in registers
//   m, l, P = online softmax(S)  in registers; where a mask cuts a block, it is applied first
//   O = diag(correction) O + P V[j]
// last block first. The loop is a software pipeline: a step issues QK^T of the next block, then PV of this one, and works on
// the softmax of the next block while PV runs. At the end of a tile, PV runs while the next tile is found, and QK^T of its
// first block while O / l and lse = m + ln(l) are stored. Where the keys are split, a tile has a share of the blocks, and
// stores its O and lse in fp32, to be merged by merge_splits, or, where its splits are a cluster of CTAs, by these. Where CTAs have
// equal shares of the keys of all sequences, one of them merges the parts of a tile, or merge_shares does.
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/sm90/forward/consumer.h"
#include "cute_kernels/sm90/forward/gather.h"
#include "cute_kernels/sm90/forward/kernel_params.h"
#include "cute_kernels/sm90/forward/load.h"
#include "cute_kernels/sm90/forward/share_schedule.h"
#include "cute_kernels/sm90/forward/traits.h"

namespace pyflash::sm90 {

template <class Traits, ForwardFeatures kFeatures, class Variant = NoVariant>
CUTE_DEVICE void forward_cta(ParamsWith<Variant> const& params) {
  static_assert(!kFeatures.fp8_kv, "the SM90 forward family does not read FP8 caches");
  static_assert(kFeatures.paged_kv || !kFeatures.gathered_kv, "rows are gathered from pages");
  constexpr int kIdleWarp = 3;  // of those that load
  auto& smem = device::uniform_smem<typename Traits::SharedStorage>();
  int const warpgroup = device::warpgroup_idx();
  int const warp = device::warp_idx();
  if (warp == 0 && device::elect_one()) {
    device::prefetch_tensor_map(params.q_map);
    if constexpr (!kFeatures.gathered_kv) {
      device::prefetch_tensor_map(params.k_map);
      device::prefetch_tensor_map(params.v_map);
    }
    CUTE_UNROLL
    for (int i = 0; i < Traits::kNConsumers; ++i) {
      smem.pipeline_Q[i].init(kWarpgroup / 32);
    }
    smem.pipeline_K.init(Traits::kNConsumerWarps, kLoadersOfStage<kFeatures>);
    smem.pipeline_V.init(Traits::kNConsumerWarps, kLoadersOfStage<kFeatures>);
    device::fence_mbarrier_init();
  }
  device::sync_threads();  // the mbarriers are visible
  if constexpr (kFeatures.equal_shares) {
    if (warp == kIdleWarp && params.shares.tag != 0) {
      ScheduleOf<Traits, kFeatures, Variant>::prefetch(params);
    }
  }
  if (!kFeatures.equal_shares || !params.shares.runs_beside) {
    device::wait_for_previous_kernel();
  }
  device::launch_dependents();
  if constexpr (kFeatures.equal_shares) {
    using Schedule = ScheduleOf<Traits, kFeatures, Variant>;
    if (warp == 0) {
      device::at(Site::Q_g2s);
      if (params.shares.tag != 0) {
        Schedule::find(params, smem.share);
      } else if (device::elect_one()) {
        Schedule::read(params, smem.share);
      }
    }
    device::sync_threads();  // the share is visible
  }

  if (warpgroup == 0) {
    if constexpr (Traits::kMovesRegisters) {
      device::registers_release<Traits::producer_registers(kFeatures)>();
    }
    if constexpr (kFeatures.equal_shares) {
      // What comes after may use what the kernel before reads and writes: this one ends after it. One CTA does, as others make
      // room for those that have not begun.
      if (params.shares.runs_beside && warp == kIdleWarp &&
          device::block_idx() == device::grid_size() - 1) {
        device::wait_for_previous_kernel();
      }
    }
    if constexpr (kFeatures.gathered_kv) {
      gather_tiles<Traits, kFeatures, Variant>(params, smem, warp);
    } else if constexpr (kFeatures.paged_kv) {
      load_paged_tiles<Traits, kFeatures, Variant>(params, smem, warp);
    } else if (device::elect_one()) {
      load_tiles<Traits, kFeatures, Variant>(params, smem, warp);
    }
  } else {
    if constexpr (Traits::kMovesRegisters) {
      device::registers_claim<Traits::consumer_registers(kFeatures)>();
    }
    Consumer<Traits, kFeatures, Variant>(params, smem, warpgroup - 1).run();
  }
}

}  // namespace pyflash::sm90
