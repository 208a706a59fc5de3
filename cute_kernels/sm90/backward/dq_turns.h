// How computing warpgroups of a deterministic backward and the warps that wait for turns in place of them wait for each other.
#pragma once

#include "cute_kernels/device_sm90.h"

namespace pyflash::sm90::backward {

// The warps that do nothing else: each takes every second block, since a sum takes longer to be complete than a block to be computed.
inline constexpr int kSenders = 2;

// Of a consumer and each sender, in shared memory.
struct DQTurns {
  // Every warp of the consumer has staged its rows of a block's dQ; or where they add from registers, has added them.
  device::Mbarrier by_warps[kSenders];
  // They have been read; or from registers, it is the tile's turn.
  device::Mbarrier by_sender[kSenders];

  // By one thread, before a fence and a barrier.
  CUTE_DEVICE void init(int n_consumer_warps) {
    CUTE_UNROLL
    for (int sender = 0; sender < kSenders; ++sender) {
      device::mbarrier_init(by_warps[sender], n_consumer_warps);
      device::mbarrier_init(by_sender[sender], 1);
    }
  }
};

}  // namespace pyflash::sm90::backward
