// Sums of dQ in one order: a warp adds what the computing warpgroups have staged, and waits for their turns in place of them.
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/backward/dq_turns.h"
#include "cute_kernels/sm90/backward/problem.h"
#include "cute_kernels/sm90/backward/traits.h"

namespace pyflash::sm90::backward {

// By one thread, for a consumer.
template <class Traits, BackwardFeatures kFeatures>
CUTE_DEVICE void send_in_turn(KernelParams const& params, typename Traits::SharedStorage& smem,
                              Tile<kFeatures> const& tile, int sender, int consumer) {
  AttentionGradients const& problem = params.problem;
  device::at(device::Site::dQ_s2g);
  DQTurns& turns = smem.dq_turns[consumer];
  float const turn = float(problem.turn_of(tile.first_key / Traits::kBlockN));
  int next = sender;
  uint32_t parity = 0;
  for (pyflash::backward::MBlocks<kFeatures> block(tile); block.exists(); block.advance()) {
    if (next-- > 0) {
      continue;
    }
    next = kSenders - 1;
    int const row = tile.workspace_row(block.head, block.m_block * Traits::kBlockM);
    int64_t const part = int64_t(row) * Traits::kHeadDim / kWarpDQ +
                         Traits::piece_dQ(consumer, 0) * Traits::kWarpsPerConsumer;
    float const found = device::wait_until_at_most(problem.turns + part, turn);
    device::mbarrier_wait(turns.staged[sender], parity);
    parity ^= 1;
    constexpr int kValues = Traits::kWarpsPerConsumer * kWarpDQ;
    device::bulk_reduce_add(smem.dq + consumer * kValues, problem.dq_sum + part * kWarpDQ,
                            kValues * sizeof(float));
    device::tma_store_commit();
    device::tma_store_wait<0>();
    device::mbarrier_arrive(turns.sent[sender]);
    device::tma_store_wait_written();
    if (found == turn) {
      device::store_release(problem.turns + part, turn - 1);
    }
  }
}

}  // namespace pyflash::sm90::backward
