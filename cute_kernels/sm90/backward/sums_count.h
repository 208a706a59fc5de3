// How CTAs count who has added to recycled sums of dQ.
#pragma once

#include "cute_kernels/device_sm90.h"

namespace pyflash::sm90::backward {

inline constexpr int kZeros = 256;  // floats in shared memory

// How the consumers of a CTA and the thread that keeps the count for them wait for each other, in shared memory.
struct SumsCount {
  device::Mbarrier cleared;  // the sums are this head's
  device::Mbarrier added;    // every consumer warp's sums are complete
  device::Mbarrier counted;  // is_last is known
  int is_last;               // whether this CTA rounds them

  // By one thread, before a fence and a barrier.
  CUTE_DEVICE void init(int n_consumer_warps) {
    device::mbarrier_init(cleared, 1);
    device::mbarrier_init(added, n_consumer_warps);
    device::mbarrier_init(counted, 1);
  }
};

}  // namespace pyflash::sm90::backward
