// dQ, dK and dV from accumulators to global memory, in 16 bits.
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/backward/shape.h"
#include "cute_kernels/sm90/backward/threads.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/gemm.h"
#include "cute_kernels/sm90/row_stores.h"

namespace pyflash::sm90::backward {

using namespace cute;

// Where a warp's 16 rows of a slab go, as far as rows and columns exist.
template <class Element>
struct SlabOut {
  Element* first;
  int64_t row_stride;
  int n_rows;
  int n_columns;
};

// acc: of 64 rows, of which the slab is kSlab columns from `first_column` on. memory: shared, of the warp.
template <int kSlab, class Element, class Acc>
CUTE_DEVICE void store_slab(Acc const& acc, int first_column, float scale, Element* memory,
                            SlabOut<Element> const& out) {
  using Stores = SlabStores<Element, kSlab>;
  int const lane = fresh_lane();
  int const column = Stores::column_of(lane);
  Tensor rows = rows_by_columns(acc);  // ((2,MMA_M),(2,V,MMA_N))
  Stores::run(
      memory, lane, device::Site::rows_r2s, device::Site::rows_s2g, first_column,
      [&](int r, int c) { return rows(r, c) * scale; },
      [&](int pass) -> RowStore<Element> {
        int const row = pass * Stores::kRowsAtATime + Stores::row_of(lane);
        return {row < out.n_rows && column < out.n_columns,
                out.first + row * out.row_stride + column};
      });
}

}  // namespace pyflash::sm90::backward
