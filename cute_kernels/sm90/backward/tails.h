// Rows of a tile that belong to the next of packed sequences: they become 0, since 0 times what they hold may be NaN.
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/shape.h"

namespace pyflash::sm90::backward {

using namespace cute;

inline constexpr int kTailBarrier = 1;

// The rows of a tile in shared memory from n_rows on. By all consumers, whose MMAs read the tile afterwards.
// rows: (rows, columns).
template <class Traits, class Rows>
CUTE_DEVICE void zero_tail(Rows&& rows, int n_rows) {
  constexpr int kRows = decltype(size<0>(rows))::value;
  constexpr int kThreads = Traits::kNConsumers * kWarpgroup;
  constexpr int kVector = sizeof(uint4) / sizeof(typename Traits::Element);
  constexpr int kVectorsOfRow = decltype(size<1>(rows))::value / kVector;
  if (n_rows >= kRows) {
    return;
  }
  device::at(device::Site::tail_r2s);
  int const first = max(n_rows, 0) * kVectorsOfRow;
  for (int i = first + device::fresh_thread_idx() - kWarpgroup; i < kRows * kVectorsOfRow;
       i += kThreads) {
    device::store(reinterpret_cast<uint4*>(&rows(i / kVectorsOfRow, i % kVectorsOfRow * kVector)),
                  uint4{});
  }
  device::fence_async_proxy();
  device::named_barrier_sync(kTailBarrier, kThreads);
}

}  // namespace pyflash::sm90::backward
