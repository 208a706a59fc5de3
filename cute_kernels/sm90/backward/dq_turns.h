// How computing warpgroups of a deterministic backward and the warps that add dQ for them wait for each other.
#pragma once

#include "cute_kernels/device_sm90.h"

namespace pyflash::sm90::backward {

// The warps that do nothing else: one takes every second block, since a sum takes longer to be complete than a block to be computed,
// or every second pass.
inline constexpr int kSenders = 2;

// What a sender adds of a consumer's, and who waits for whom, in shared memory.
struct DQTurns {
  device::Mbarrier staged[kSenders];  // every warp of the consumer has staged its rows of a block
  device::Mbarrier sent[kSenders];    // they have been read

  // By one thread, before a fence and a barrier.
  CUTE_DEVICE void init(int n_consumer_warps) {
    CUTE_UNROLL
    for (int sender = 0; sender < kSenders; ++sender) {
      device::mbarrier_init(staged[sender], n_consumer_warps);
      device::mbarrier_init(sent[sender], 1);
    }
  }
};

}  // namespace pyflash::sm90::backward
