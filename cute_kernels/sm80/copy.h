// Blocks between global and shared memory, 16 bytes a thread at a time. Tensors come partitioned by one TiledCopy:
// (CPY,CPY_M,CPY_K), with coordinates (row, column) in the block beside them. And fp32 accumulators to global memory.
#pragma once

#include <cute/tensor.hpp>

#include "cute_kernels/device.h"

namespace pyflash::sm80 {

using namespace cute;

// What of a block there is in global memory.
struct Extent {
  int rows;
  int columns;
};

// A partition of stage 0 of K or V as that of the stage that holds block n_block.
// NOTE: by address: an index inside of a swizzled layout would put its XOR into the loop.
template <class Traits, class Partition>
CUTE_DEVICE auto at_stage(Partition const& partition, [[maybe_unused]] int n_block) {
  if constexpr (Traits::kKVStages == 1) {
    return partition;
  } else {
    int const stage = static_cast<uint32_t>(n_block) % Traits::kKVStages;
    constexpr int kStageElements = cosize_v<typename Traits::SmemLayoutKV>;
    return make_tensor(partition.data() + stage * kStageElements, partition.layout());
  }
}

// Copies a block to shared memory, asynchronously or through registers. With kRagged, rows outside of `extent` are filled
// with zeros and their global memory is not touched; without, every row is inside. kPredicatedColumns is
// the same for columns.
template <class Traits, bool kRagged, bool kPredicatedColumns, class TiledCopy, class SrcTensor,
          class DstTensor, class CoordTensor>
CUTE_DEVICE void copy_g2s(TiledCopy const& tiled_copy, SrcTensor const& src, DstTensor&& dst,
                          CoordTensor const& coords, Extent const& extent) {
  constexpr bool kThroughRegisters = !Traits::kAsyncCopy;
  Tensor in_flight = make_fragment_like(dst);  // (CPY,CPY_M,CPY_K), unused by asynchronous copies
  CUTE_UNROLL
  for (int k = 0; k < size<2>(dst); ++k) {
    bool const column_exists = !kPredicatedColumns || get<1>(coords(0, 0, k)) < extent.columns;
    CUTE_UNROLL
    for (int m = 0; m < size<1>(dst); ++m) {
      bool const exists = column_exists && (!kRagged || get<0>(coords(0, m, 0)) < extent.rows);
      if constexpr (kThroughRegisters) {
        clear(in_flight(_, m, k));
        if (exists) {
          copy(tiled_copy, src(_, m, k), in_flight(_, m, k));
        }
      } else if constexpr (kRagged || kPredicatedColumns) {
        typename Traits::AsyncCopyAtomOrZeros const copy_or_zeros;
        copy(copy_or_zeros.with(exists), src(_, m, k), dst(_, m, k));
      } else {
        copy(tiled_copy, src(_, m, k), dst(_, m, k));
      }
    }
  }
  if constexpr (kThroughRegisters) {
    copy(tiled_copy, in_flight, dst);
  }
}

// Copies what of a block is inside of `extent` to global memory.
template <class TiledCopy, class SrcTensor, class DstTensor, class CoordTensor>
CUTE_DEVICE void copy_s2g(TiledCopy const& tiled_copy, SrcTensor const& src, DstTensor&& dst,
                          CoordTensor const& coords, Extent const& extent) {
  CUTE_UNROLL
  for (int m = 0; m < size<1>(dst); ++m) {
    CUTE_UNROLL
    for (int k = 0; k < size<2>(dst); ++k) {
      if (get<0>(coords(0, m, 0)) < extent.rows && get<1>(coords(0, 0, k)) < extent.columns) {
        copy(tiled_copy, src(_, m, k), dst(_, m, k));
      }
    }
  }
}

// Stores what of an accumulator is inside of `extent` as rows of extent.columns, row-major, two columns at a time. coords:
// (row, column), partitioned like acc.
template <class Acc, class CoordTensor>
CUTE_DEVICE void store_partial(Acc const& acc, CoordTensor const& coords, float* base,
                               Extent const& extent) {
  CUTE_UNROLL
  for (int i = 0; i < size(acc); i += 2) {
    int const row = get<0>(coords(i));
    int const column = get<1>(coords(i));
    if (row < extent.rows && column < extent.columns) {
      float* const address = base + int64_t(row) * extent.columns + column;
      device::store(reinterpret_cast<float2*>(address), float2{acc(i), acc(i + 1)});
    }
  }
}

}  // namespace pyflash::sm80
