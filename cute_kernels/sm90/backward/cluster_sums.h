// dK and dV of a tile whose query heads a cluster of CTAs has divided: each CTA adds up some parts of them, through the others'
// shared memory, in the order of ranks, so that the sums are the same every time.
#pragma once

#include <cstddef>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/backward/shape.h"
#include "cute_kernels/sm90/backward/tails.h"
#include "cute_kernels/sm90/backward/threads.h"
#include "cute_kernels/sm90/cute.h"

namespace pyflash::sm90::backward {

using namespace cute;

// A part is what one consumer has of dV, or of dK. The CTA of rank r adds up the r-th of equal shares of the parts, and leaves
// the others where Q and dO were.
template <class Traits>
struct ClusterSums {
  static constexpr int kParts = 2 * Traits::kNConsumers;
  static constexpr int kPartFloats = Traits::kMmaM * Traits::kColumnsDKV;
  static constexpr int kValues = kPartFloats / kWarpgroup;  // of a thread
  using Storage = typename Traits::SharedStorage;
  static_assert(offsetof(Storage, grad_o) == offsetof(Storage, q) + sizeof(Storage::q));
  static_assert((kParts - kParts / Traits::kMaxCluster) * kPartFloats * sizeof(float) <=
                    sizeof(Storage::q) + sizeof(Storage::grad_o),
                "there is room for the parts that a CTA leaves");

  Storage& smem;
  int const consumer;
  int const n_ctas = device::cluster_size();
  int const rank = device::cluster_rank();

  enum Sum : int { kDV, kDK };

  // Whether this CTA adds up what its consumer has of a sum.
  CUTE_DEVICE bool owns(Sum sum) const { return owner(sum) == rank; }

  // By all consumers, which need Q and dO no longer. What this CTA owns is added up afterwards.
  template <class Acc>
  CUTE_DEVICE void run(Acc& acc_dV, Acc& acc_dK) const {
    device::at(device::Site::part_r2s);
    device::named_barrier_sync(kTailBarrier, Traits::kNConsumers * kWarpgroup);
    leave(acc_dV, kDV);
    leave(acc_dK, kDK);
    device::cluster_sync();  // the parts are visible
    device::at(device::Site::part_s2r);
    add_up(acc_dV, kDV);
    add_up(acc_dK, kDK);
    device::cluster_sync();  // no CTA ends while others read its shared memory
  }

 private:
  CUTE_DEVICE int part(Sum sum) const { return sum * Traits::kNConsumers + consumer; }
  CUTE_DEVICE int owner(Sum sum) const { return part(sum) * n_ctas / kParts; }
  // This thread's values of a part that the CTA of this rank has left.
  CUTE_DEVICE float4* values(Sum sum, int of_rank) const {
    int const n_own = kParts / n_ctas;
    int const slot = part(sum) - (part(sum) < of_rank * n_own ? 0 : n_own);
    return reinterpret_cast<float4*>(reinterpret_cast<float*>(smem.q) + slot * kPartFloats) +
           fresh_thread();
  }
  template <class Acc>
  CUTE_DEVICE void leave(Acc const& acc, Sum sum) const {
    static_assert(decltype(size(acc))::value == kValues);
    if (owns(sum)) {
      return;
    }
    float4* const out = values(sum, rank);
    CUTE_UNROLL
    for (int i = 0; i < kValues; i += 4) {
      device::store(out + i / 4 * kWarpgroup, float4{acc(i), acc(i + 1), acc(i + 2), acc(i + 3)});
    }
  }
  template <class Acc>
  CUTE_DEVICE void add_up(Acc& acc, Sum sum) const {
    if (!owns(sum)) {
      return;
    }
    CUTE_NO_UNROLL
    for (int other = 0; other < n_ctas; ++other) {
      if (other == rank) {
        continue;
      }
      float4 const* const in = values(sum, other);
      CUTE_UNROLL
      for (int i = 0; i < kValues; i += 4) {
        float4 const value = device::load_from_rank(in + i / 4 * kWarpgroup, other);
        acc(i) += value.x;
        acc(i + 1) += value.y;
        acc(i + 2) += value.z;
        acc(i + 3) += value.w;
      }
    }
  }
};

}  // namespace pyflash::sm90::backward
