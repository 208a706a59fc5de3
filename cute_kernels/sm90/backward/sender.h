// Sums of dQ in one order: a warp adds what the computing warpgroups have staged, and waits for their turns in place of them.
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/backward/dq_turns.h"
#include "cute_kernels/sm90/backward/problem.h"
#include "cute_kernels/sm90/backward/traits.h"

namespace pyflash::sm90::backward {

// By one thread of a sender's warp: one sends every second block, or where a block has two passes of dQ, one of them of each block.
// NOTE: one thread for all consumers: two of a warp would wait for each other wherever one of them waits.
template <class Traits, BackwardFeatures kFeatures>
CUTE_DEVICE void send_in_turn(KernelParams const& params, typename Traits::SharedStorage& smem,
                              Tile<kFeatures> const& tile, int sender) {
  constexpr int kValues =
      Traits::kWarpsPerConsumer * Traits::PieceDQ::kWarpFloats;  // of a consumer
  AttentionGradients const& problem = params.problem;
  device::at(device::Site::dQ_s2g);
  float const turn = float(problem.turn_of(tile.first_key / Traits::kBlockN));
  // Each has a turn of its own.
  static_assert(Traits::kPassesDQ == 1 || Traits::kPassesDQ == kSenders);
  int const pass = Traits::kPassesDQ == 1 ? 0 : sender;
  int next = sender;
  uint32_t parity = 0;
  for (pyflash::backward::MBlocks<kFeatures> block(tile); block.exists(); block.advance()) {
    if (Traits::kPassesDQ == 1 && next-- > 0) {
      continue;
    }
    next = kSenders - 1;
    int64_t const row = tile.workspace_row(block.head, block.m_block * Traits::kBlockM);
    float* const sums = problem.dq_sum + row * Traits::kHeadDim;
    float* const turn_of_block = problem.turns + row * Traits::kHeadDim / kSumsOfTurn + pass;
    float const found = device::wait_until_at_most(turn_of_block, turn);
    CUTE_UNROLL
    for (int consumer = 0; consumer < Traits::kNConsumers; ++consumer) {
      device::mbarrier_wait(smem.dq_turns[consumer].staged[sender], parity);
      device::bulk_reduce_add(smem.dq + consumer * kValues,
                              sums + Traits::piece_dQ(consumer, pass) * kValues,
                              kValues * sizeof(float));
      device::tma_store_commit();
    }
    parity ^= 1;
    device::tma_store_wait<0>();
    CUTE_UNROLL
    for (int consumer = 0; consumer < Traits::kNConsumers; ++consumer) {
      device::mbarrier_arrive(smem.dq_turns[consumer].sent[sender]);
    }
    device::tma_store_wait_written();
    if (found == turn) {
      device::store_release(turn_of_block, turn - 1);
    }
  }
}

}  // namespace pyflash::sm90::backward
