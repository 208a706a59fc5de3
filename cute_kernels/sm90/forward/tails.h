// Rows of V that no query of a tile attends become 0 where they may hold anything: P is 0 there, but 0 * NaN is not.
#pragma once

#include <cute/tensor.hpp>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/shape.h"

namespace pyflash::sm90 {

using namespace cute;

// Rows [begin, end) of a stage of V, which is there. By a warpgroup, whose MMAs read it afterwards. sV: (kBlockN,kHeadDim).
// barrier: a named one of the warpgroup.
template <class Traits, class Stage>
CUTE_DEVICE void clear_rows(Stage&& sV, int begin, int end, int barrier) {
  constexpr int kVector = 8;
  constexpr int kVectorsOfRow = Traits::kHeadDim / kVector;
  CUTE_NO_UNROLL
  for (int i = device::fresh_thread_idx() % kWarpgroup; i < (end - begin) * kVectorsOfRow;
       i += kWarpgroup) {
    int const row = begin + i / kVectorsOfRow;
    int const column = i % kVectorsOfRow * kVector;
    device::store(reinterpret_cast<uint4*>(raw_pointer_cast(&sV(row, column))), uint4{});
  }
  device::fence_async_proxy();
  device::named_barrier_sync(barrier, kWarpgroup);  // the zeros are visible
}

}  // namespace pyflash::sm90
