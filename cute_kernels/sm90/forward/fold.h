// Splits at fixed keys of a tile that has all of them: what came before waits in shared memory, as its thread has it in registers,
// and takes each split's O and lse in (common/fold.h).
#pragma once

#include "cute_kernels/common/fold.h"
#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/forward/problem.h"
#include "cute_kernels/sm90/forward/shape.h"

namespace pyflash::sm90 {

using namespace cute;

struct FoldMath {
  static CUTE_DEVICE float exp(float x) { return device::exp(x); }
  static CUTE_DEVICE float log(float x) { return device::log(x); }
  static CUTE_DEVICE float product(float a, float b) { return device::rounded_product(a, b); }
  static CUTE_DEVICE float fma(float a, float b, float c) { return device::fma(a, b, c); }
};

CUTE_DEVICE float4 to_floats(uint4 const& bits) { return reinterpret_cast<float4 const&>(bits); }
CUTE_DEVICE uint4 to_bits(float4 const& floats) { return reinterpret_cast<uint4 const&>(floats); }

// Behind SharedStorage. Of a thread's values of O the first lie where its warp's O leaves through, the others here; four lanes share
// two rows.
template <class Traits>
struct FoldStorage {
  static constexpr int kThreads = Traits::kNConsumers * kWarpgroup;
  static constexpr int kVectors = Traits::kMmaM * Traits::kHeadDim / kWarpgroup / 4;
  static constexpr int kOfEpilogue =
      Traits::kEpilogue * kElementBytes / kWarpgroup / sizeof(float4);

  float4 values[kVectors - kOfEpilogue][kThreads];
  float rows[kThreads];
};

// Where a thread's values and rows lie.
template <class Traits>
struct FoldOfThread {
  using Storage = FoldStorage<Traits>;
  static_assert(sizeof(Storage) == Traits::kFoldBytes);
  using Row = Fold<FoldMath>;
  static constexpr int kRows = 2;

  device::SmemAddress epilogue;  // of the lane
  device::SmemAddress values;    // of the thread
  device::SmemAddress rows;      // of its four lanes
  int lane;

  CUTE_DEVICE FoldOfThread(typename Traits::SharedStorage& smem, int warpgroup) {
    auto& storage = *reinterpret_cast<Storage*>(&smem + 1);
    int const in_warpgroup = device::fresh_thread_idx() % kWarpgroup;
    int const thread = warpgroup * kWarpgroup + in_warpgroup;
    lane = in_warpgroup % 32;
    epilogue = device::smem_address(smem.epilogue(warpgroup)) +
               (in_warpgroup / 32 * 32 * Storage::kOfEpilogue + lane) * int(sizeof(float4));
    values = device::smem_address(storage.values) + thread * int(sizeof(float4));
    rows = device::smem_address(storage.rows) + thread / 4 * int(sizeof(float4));
  }

  CUTE_DEVICE device::SmemAddress at(int vector) const {
    constexpr int kStep = Storage::kThreads * sizeof(float4);
    return vector < Storage::kOfEpilogue ? epilogue + vector * 32 * int(sizeof(float4))
                                         : values + (vector - Storage::kOfEpilogue) * kStep;
  }
  CUTE_DEVICE void load_rows(Row (&of_thread)[kRows]) const {
    float4 const numbers = to_floats(device::load_shared(rows));
    of_thread[0] = {numbers.x, numbers.y};
    of_thread[1] = {numbers.z, numbers.w};
  }
  // By all lanes of a warp.
  CUTE_DEVICE void store_rows(Row const (&of_thread)[kRows]) const {
    device::sync_warp();  // what was there has been read
    if (lane % 4 == 0) {
      device::store_shared(rows, to_bits(float4{of_thread[0].largest, of_thread[0].sum,
                                                of_thread[1].largest, of_thread[1].sum}));
    }
    device::sync_warp();  // these are visible
  }
};

// Takes in a split's O, divided by its sum, and its lse. goes_on: after others of the tile. kCloses: it is the tile's last, so that O
// and lse become the tile's, and all of a warp's memory is free again. kSinks: `sinks` has logits of the rows, or -inf.
template <class Traits, bool kCloses, bool kSinks, class AccO, class PerRow>
CUTE_DEVICE void fold_split(typename Traits::SharedStorage& smem, int warpgroup, bool goes_on,
                            AccO& acc_O, PerRow& lse, PerRow const& sinks) {
  using Thread = FoldOfThread<Traits>;
  constexpr int kVectors = Thread::Storage::kVectors;
  constexpr int kInFlight = 4;  // loads of a thread
  static_assert(kVectors % kInFlight == 0);
  if (kCloses && !kSinks && !goes_on) {
    return;  // it is alone
  }
  Thread const thread(smem, warpgroup);
  typename Thread::Row rows[Thread::kRows];
  if (goes_on) {
    device::at(device::Site::part_s2r);
    thread.load_rows(rows);
  }
  typename Thread::Row::Weights weights[Thread::kRows];
  float factors[Thread::kRows];
  CUTE_UNROLL
  for (int r = 0; r < Thread::kRows; ++r) {
    weights[r] = rows[r].add(lse(r));
    factors[r] = kCloses ? rows[r].finish(kSinks ? sinks(r) : -INFINITY) : 1.f;
    lse(r) = rows[r].lse();
  }
  if constexpr (!kCloses) {
    device::at(device::Site::part_r2s);
    thread.store_rows(rows);
  }
  auto take_in = [&](auto goes_on) {
    CUTE_UNROLL
    for (int first = 0; first < kVectors; first += kInFlight) {
      float4 before[kInFlight];
      if constexpr (goes_on.value) {
        device::at(device::Site::part_s2r);
        CUTE_UNROLL
        for (int i = 0; i < kInFlight; ++i) {
          before[i] = to_floats(device::load_shared(thread.at(first + i)));
        }
      }
      CUTE_UNROLL
      for (int i = 0; i < kInFlight; ++i) {
        int const v = first + i;
        // Two columns of each row.
        float4 sum{acc_O(4 * v), acc_O(4 * v + 1), acc_O(4 * v + 2), acc_O(4 * v + 3)};
        if constexpr (goes_on.value) {
          sum = {weights[0].of(before[i].x, sum.x), weights[0].of(before[i].y, sum.y),
                 weights[1].of(before[i].z, sum.z), weights[1].of(before[i].w, sum.w)};
        }
        if constexpr (kCloses) {
          acc_O(4 * v) = device::rounded_product(sum.x, factors[0]);
          acc_O(4 * v + 1) = device::rounded_product(sum.y, factors[0]);
          acc_O(4 * v + 2) = device::rounded_product(sum.z, factors[1]);
          acc_O(4 * v + 3) = device::rounded_product(sum.w, factors[1]);
        } else {
          device::at(device::Site::part_r2s);
          device::store_shared(thread.at(v), to_bits(sum));
        }
      }
    }
  };
  if (goes_on) {
    take_in(true_type{});
  } else {
    take_in(false_type{});
  }
  if constexpr (kCloses) {
    device::sync_warp();  // O of other lanes leaves through what this one has read
  }
}

}  // namespace pyflash::sm90
