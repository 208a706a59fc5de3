// Blocks between global and shared memory, 16 bytes a thread at a time. Tensors come partitioned by one TiledCopy:
// (CPY,CPY_M,CPY_K), with coordinates (row, column) in the block beside them.
#pragma once

#include <cute/tensor.hpp>

namespace pyflash::sm80 {

using namespace cute;

// Copies a block to shared memory, asynchronously or through registers. With kCheckRows, rows at or past n_rows are
// filled with zeros and their global memory is not touched.
template <class Traits, bool kCheckRows, class TiledCopy, class SrcTensor, class DstTensor,
          class CoordTensor>
CUTE_DEVICE void copy_g2s(TiledCopy const& tiled_copy, SrcTensor const& src, DstTensor&& dst,
                          CoordTensor const& coords, int n_rows) {
  if constexpr (Traits::kAsyncCopy && kCheckRows) {
    typename Traits::AsyncCopyAtomOrZeros const copy_or_zeros;
    CUTE_UNROLL
    for (int m = 0; m < size<1>(dst); ++m) {
      copy(copy_or_zeros.with(get<0>(coords(0, m, 0)) < n_rows), src(_, m, _), dst(_, m, _));
    }
  } else if constexpr (Traits::kAsyncCopy) {
    copy(tiled_copy, src, dst);
  } else {
    Tensor in_flight = make_fragment_like(dst);  // (CPY,CPY_M,CPY_K)
    CUTE_UNROLL
    for (int m = 0; m < size<1>(dst); ++m) {
      if (!kCheckRows || get<0>(coords(0, m, 0)) < n_rows) {
        copy(tiled_copy, src(_, m, _), in_flight(_, m, _));
      } else {
        clear(in_flight(_, m, _));
      }
    }
    copy(tiled_copy, in_flight, dst);
  }
}

// Copies the rows of a block below n_rows to global memory.
template <class TiledCopy, class SrcTensor, class DstTensor, class CoordTensor>
CUTE_DEVICE void copy_s2g(TiledCopy const& tiled_copy, SrcTensor const& src, DstTensor&& dst,
                          CoordTensor const& coords, int n_rows) {
  CUTE_UNROLL
  for (int m = 0; m < size<1>(dst); ++m) {
    if (get<0>(coords(0, m, 0)) < n_rows) {
      copy(tiled_copy, src(_, m, _), dst(_, m, _));
    }
  }
}

}  // namespace pyflash::sm80
