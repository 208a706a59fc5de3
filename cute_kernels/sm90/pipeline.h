// A ring of shared-memory stages between a producer, which fills them by TMA, or a warp that does by cp.async, and consumers.
#pragma once

#include "cute_kernels/device_sm90.h"

namespace pyflash::sm90 {

// Where a reader or a writer of a ring stands.
template <int kStages>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;  // of the round through the ring

  CUTE_DEVICE void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// In shared memory.
template <int kStages>
struct Pipeline {
  device::Mbarrier full[kStages];   // the bytes of a stage have arrived
  device::Mbarrier empty[kStages];  // every consumer warp has read it

  using Position = RingPosition<kStages>;

  // By one thread, before a fence and a barrier.
  CUTE_DEVICE void init(int n_consumer_warps, int n_producers = 1) {
    CUTE_UNROLL
    for (int stage = 0; stage < kStages; ++stage) {
      device::mbarrier_init(full[stage], n_producers);
      device::mbarrier_init(empty[stage], n_consumer_warps);
    }
  }

  // The producer's side.
  CUTE_DEVICE void wait_until_empty(Position const& at) {
    device::mbarrier_wait(empty[at.stage], at.parity ^ 1);
  }
  // By one thread: waits for the stage to be empty; the loads that follow bring `bytes`.
  CUTE_DEVICE device::Mbarrier& acquire(Position const& at, int bytes) {
    wait_until_empty(at);
    device::mbarrier_arrive_and_expect(full[at.stage], bytes);
    return full[at.stage];
  }
  // By a warp that copies: whether it may begin, as far as one can tell without waiting.
  CUTE_DEVICE bool seems_empty(Position const& at) {
    return !device::any_lane(!device::mbarrier_test(empty[at.stage], at.parity ^ 1));
  }
  // By a warp whose copies to the stage have arrived.
  CUTE_DEVICE void fill(Position const& at) {
    device::fence_async_proxy();
    device::sync_warp();  // each lane's copies and fence come before the arrival
    if (device::elect_one()) {
      device::mbarrier_arrive(full[at.stage]);
    }
  }

  // A consumer's side.
  CUTE_DEVICE void wait(Position const& at) { device::mbarrier_wait(full[at.stage], at.parity); }
  // Once for each warp, when what it has read is in registers or used up.
  CUTE_DEVICE void release(Position const& at) {
    if (device::elect_one()) {
      device::mbarrier_arrive(empty[at.stage]);
    }
  }
};

}  // namespace pyflash::sm90
