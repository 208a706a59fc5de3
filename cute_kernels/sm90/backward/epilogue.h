// dQ, dK and dV from accumulators to global memory, in 16 bits: a warp's 16 rows go through shared memory, a slab of columns
// at a time, so that every store instruction writes whole rows of the slab.
#pragma once

#include <cute/tensor.hpp>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/backward/traits.h"
#include "cute_kernels/sm90/gemm.h"

namespace pyflash::sm90::backward {

using namespace cute;
using device::Site;

// rows: ((2,MMA_M),(2,V,MMA_N)), of a warp's 16 rows, of which the slab is 64 columns from `first_column` on. memory: shared, of
// the warp. n_columns: of the slab that exist. row_out(row): where a row of the slab goes; nullptr: nowhere.
template <class Traits, class Rows, class RowOut>
CUTE_DEVICE void store_slab(Rows const& rows, int first_column, float scale,
                            typename Traits::Element* memory, int n_columns,
                            RowOut const& row_out) {
  using Element = typename Traits::Element;
  constexpr int kSlab = Traits::kSlab;
  constexpr int kVector = 8;                       // columns in 16 bytes
  constexpr int kLanesPerRow = kSlab / kVector;    // of a slab
  constexpr int kRowsAtATime = 32 / kLanesPerRow;  // that a warp stores
  int const lane = device::fresh_thread_idx() % 32;
  Tensor sOut =
      make_tensor(make_smem_ptr(memory), typename Traits::SmemLayoutOut{});  // (kWarpRows,kSlab,1)
  device::at(Site::rows_r2s);
  // Two of the MMA's 8-column groups, by rows 0-7 and 8-15 each, are the four matrices of a store.
  CUTE_UNROLL
  for (int c = 0; c < kSlab; c += 16) {
    uint32_t words[4];
    CUTE_UNROLL
    for (int i = 0; i < 4; ++i) {
      int const pair = (first_column + c) / 4 + i / 2 * 2;  // of this lane's columns
      words[i] = device::pack2(rows(i % 2, pair) * scale, rows(i % 2, pair + 1) * scale, Element{});
    }
    device::store_matrices(words, &sOut(lane % 16, c + lane / 16 * 8, 0));
  }
  device::sync_warp();
  device::at(Site::rows_s2g);
  int const column = lane % kLanesPerRow * kVector;
  CUTE_UNROLL
  for (int first = 0; first < Traits::kWarpRows; first += kRowsAtATime) {
    int const row = first + lane / kLanesPerRow;
    uint4 const values = device::load(reinterpret_cast<uint4 const*>(&sOut(row, column, 0)));
    Element* const out = row_out(row);
    if (out != nullptr && column < n_columns) {
      device::store(reinterpret_cast<uint4*>(out + column), values);
    }
  }
  device::sync_warp();  // the slab is free
}

}  // namespace pyflash::sm90::backward
