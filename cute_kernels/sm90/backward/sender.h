// Sums of dQ in one order: a warp waits for turns in place of the computing warpgroups. It adds what these have staged, or tells them
// to add from registers, so that they never wait for memory.
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/backward/dq_turns.h"
#include "cute_kernels/sm90/backward/problem.h"
#include "cute_kernels/sm90/backward/traits.h"

namespace pyflash::sm90::backward {

// Lets the consumers add a block from registers, and waits until they have.
template <class Traits>
CUTE_DEVICE void let_add(DQTurns (&turns)[Traits::kNConsumers], int sender, uint32_t parity) {
  CUTE_UNROLL
  for (int consumer = 0; consumer < Traits::kNConsumers; ++consumer) {
    device::mbarrier_arrive(turns[consumer].by_sender[sender]);
  }
  CUTE_UNROLL
  for (int consumer = 0; consumer < Traits::kNConsumers; ++consumer) {
    device::mbarrier_wait(turns[consumer].by_warps[sender], parity);
  }
}

// Adds what they have staged of a block to its sums, and waits until it is there.
template <class Traits>
CUTE_DEVICE void add_staged(typename Traits::SharedStorage& smem, float* sums, int sender,
                            uint32_t parity) {
  constexpr int kValues =
      Traits::kWarpsPerConsumer * Traits::PieceDQ::kWarpFloats;  // of a consumer
  CUTE_UNROLL
  for (int consumer = 0; consumer < Traits::kNConsumers; ++consumer) {
    device::mbarrier_wait(smem.dq_turns[consumer].by_warps[sender], parity);
    device::bulk_reduce_add(smem.dq + consumer * kValues, sums + consumer * kValues,
                            kValues * sizeof(float));
    device::tma_store_commit();
  }
  device::tma_store_wait<0>();
  CUTE_UNROLL
  for (int consumer = 0; consumer < Traits::kNConsumers; ++consumer) {
    device::mbarrier_arrive(smem.dq_turns[consumer].by_sender[sender]);
  }
  device::tma_store_wait_written();
}

// By one thread of a sender's warp, of every second block.
// NOTE: one thread for all consumers: two of a warp would wait for each other wherever one of them waits.
template <class Traits, BackwardFeatures kFeatures>
CUTE_DEVICE void take_turns(KernelParams const& params, typename Traits::SharedStorage& smem,
                            Tile<kFeatures> const& tile, int sender) {
  AttentionGradients const& problem = params.problem;
  device::at(device::Site::dQ_s2g);
  float const turn = float(problem.turn_of(tile.first_key / Traits::kBlockN));
  int next = sender;
  uint32_t parity = 0;
  for (pyflash::backward::MBlocks<kFeatures> block(tile); block.exists(); block.advance()) {
    if (next-- > 0) {
      continue;
    }
    next = kSenders - 1;
    int64_t const row = tile.workspace_row(block.head, block.m_block * Traits::kBlockM);
    // Each part of the columns has one.
    float* const turn_of_block =
        problem.turns + row * Traits::kHeadDim / kSumsOfTurn + tile.column_part;
    float const found = device::wait_until_at_most(turn_of_block, turn);
    if constexpr (Traits::kDQByRed) {
      let_add<Traits>(smem.dq_turns, sender, parity);
    } else {
      add_staged<Traits>(smem, problem.dq_sum + row * Traits::kHeadDim, sender, parity);
    }
    parity ^= 1;
    // NOTE: it releases what the consumers have added, too, since this thread has waited for them.
    if (found == turn) {
      device::store_release(turn_of_block, turn - 1);
    }
  }
}

}  // namespace pyflash::sm90::backward
