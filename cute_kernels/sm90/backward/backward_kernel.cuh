// FlashAttention backward with SM90 atoms (Dao 2023, algorithm 2; Shah et al. 2024): dK, dV, and the sums of dQ.
//
// A CTA owns kBlockN keys of a head of K and V, and works through the blocks of kBlockM queries that attend them, of every
// query head of the group, or with other CTAs of a cluster, of some (cluster_sums.h). Warpgroup 0 loads Q, dO and a number for
// each query, lse and -delta = dlse - rowsum(dO * O); where the sums of dQ have one order, it waits for turns, too. Each of the other
// warpgroups has 64 keys as rows of its MMAs:
//   S^T = K Q^T, dP^T = V dO^T         fp32 accumulators in registers
//   P^T = 2^(scale S^T - lse)          in registers; where a mask cuts a block, 0
//   dS^T = P^T * (dP^T - delta)        in registers, and through shared memory to all warpgroups
//   dV += P^T dO, dK += dS^T Q         A from registers as it is
//   dQ = dS K                          64 queries and some columns by each warpgroup, over all keys of the tile
// Where dK and dV of 128 keys have no room, two CTAs have the same keys, compute the same P and dS, and dQ, dK and dV in a half of
// the columns each.
// dQ of a block is added to fp32 sums in global memory; the last CTA to add to a head's scales and rounds them (recycled_sums.h), or
// `postprocess`. A variant's scores are f(scale S^T), and
// its dS^T has a factor f'.
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/backward/consumer.h"
#include "cute_kernels/sm90/backward/load.h"
#include "cute_kernels/sm90/backward/outputs.h"
#include "cute_kernels/sm90/backward/problem.h"
#include "cute_kernels/sm90/backward/sender.h"
#include "cute_kernels/sm90/backward/traits.h"

namespace pyflash::sm90::backward {

template <class Traits, BackwardFeatures kFeatures>
CUTE_DEVICE void init_barriers(typename Traits::SharedStorage& smem) {
  smem.pipeline_K.init(Traits::kNConsumerWarps);
  smem.pipeline_V.init(Traits::kNConsumerWarps);
  smem.pipeline_Q.init(Traits::kNConsumerWarps);
  smem.pipeline_dO.init(Traits::kNConsumerWarps);
  CUTE_UNROLL
  for (int stage = 0; stage < Traits::kStagesDS; ++stage) {
    device::mbarrier_init(smem.ds_ready[stage], Traits::kNConsumerWarps);
  }
  if constexpr (kFeatures.deterministic) {
    CUTE_UNROLL
    for (int consumer = 0; consumer < Traits::kNConsumers; ++consumer) {
      smem.dq_turns[consumer].init(Traits::kWarpsPerConsumer);
    }
  }
  if constexpr (RecycledSums<Traits, kFeatures>::kMayBe) {
    smem.sums.init(Traits::kNConsumerWarps);
  }
  if constexpr (Traits::kColumnParts > 1) {
    smem.parts.init(Traits::kNConsumerWarps);
  }
  device::fence_mbarrier_init();
}

template <class Traits, BackwardFeatures kFeatures, class Variant = variant::NoVariant>
CUTE_DEVICE void backward_cta(variant::ParamsOf<KernelParams, Variant> const& params) {
  auto& smem = device::uniform_smem<typename Traits::SharedStorage>();
  int const warpgroup = device::warpgroup_idx();
  int const warp = device::warp_idx();
  if (warp == 0 && device::elect_one()) {
    device::prefetch_tensor_map(params.q_map);
    device::prefetch_tensor_map(params.do_map);
    device::prefetch_tensor_map(params.k_map);
    device::prefetch_tensor_map(params.v_map);
    init_barriers<Traits, kFeatures>(smem);
  }
  device::sync_threads();  // the mbarriers are visible
  device::wait_for_previous_kernel();
  device::launch_dependents();

  Tile<kFeatures> tile = tile_of<Traits, kFeatures, Variant>(params, device::block_idx());
  variant::limit_lengths<Variant, Traits::kBlockM>(tile);
  if (warpgroup == 0) {
    device::registers_release<Traits::kProducerRegisters>();
    if (warp < kLoaders) {
      if (device::elect_one()) {
        load_tile<Traits, Variant>(params, smem, tile, warp);
      }
    } else if constexpr (kFeatures.deterministic) {
      if (device::elect_one()) {
        take_turns<Traits>(params, smem, tile, warp - kLoaders);
      }
    } else if constexpr (RecycledSums<Traits, kFeatures>::kMayBe) {
      if (params.problem.recycles_sums()) {
        RecycledSums<Traits, kFeatures> const sums{params, smem, tile};
        warp == kLoaders ? sums.keep_count() : sums.clear_others();
      }
    }
  } else {
    device::registers_claim<Traits::kConsumerRegisters>();
    Consumer<Traits, kFeatures, Variant>(params, smem, tile, warpgroup - 1).run();
  }
}

}  // namespace pyflash::sm90::backward
