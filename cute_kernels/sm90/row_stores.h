// Rows from accumulators to global memory, in 16 bits: a warp's 16 rows go through shared memory, a slab of columns at a time,
// so that every store instruction writes whole rows of the slab.
#pragma once

#include <cute/tensor.hpp>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/shape.h"
#include "cute_kernels/sm90/slabs.h"

namespace pyflash::sm90 {

using namespace cute;

// The 16 bytes of a row that a lane stores.
template <class Element>
struct RowStore {
  bool exists;
  Element* address;
};

// How the lanes of a warp share the rows of a slab: kRowsAtATime of them in a pass, 16 bytes each.
template <class Element, int kSlab>
struct SlabStores {
  static constexpr int kVector = 8;                       // columns in 16 bytes
  static constexpr int kLanesPerRow = kSlab / kVector;    // of a slab
  static constexpr int kRowsAtATime = 32 / kLanesPerRow;  // that a warp stores
  static constexpr int kPasses = kWarpRows / kRowsAtATime;

  // In the slab, of the first pass.
  CUTE_DEVICE static int row_of(int lane) { return lane / kLanesPerRow; }
  CUTE_DEVICE static int column_of(int lane) { return lane % kLanesPerRow * kVector; }

  // memory: shared, of the warp. value_at(r, c): column c, as a thread holds them, of row r of an accumulator; the slab is 64 or
  // 32 columns from `first_column` on. store_at(pass): a RowStore.
  template <class ValueAt, class StoreAt>
  CUTE_DEVICE static void run(Element* memory, int lane, device::Site to_shared,
                              device::Site to_global, int first_column, ValueAt const& value_at,
                              StoreAt const& store_at) {
    Tensor sO =
        make_tensor(make_smem_ptr(memory),
                    typename Slabs<kSlab>::template OneSlab<kWarpRows>{});  // (kWarpRows,kSlab)
    device::at(to_shared);
    // Two of the MMA's 8-column groups, by rows 0-7 and 8-15 each, are the four matrices of a store.
    CUTE_UNROLL
    for (int c = 0; c < kSlab; c += 16) {
      uint32_t words[4];
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        int const pair = (first_column + c) / 4 + i / 2 * 2;  // of this lane's columns
        words[i] = device::pack2(value_at(i % 2, pair), value_at(i % 2, pair + 1), Element{});
      }
      device::store_matrices(words, &sO(lane % 16, c + lane / 16 * 8));
    }
    device::sync_warp();
    device::at(to_global);
    CUTE_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      uint4 const values = device::load(
          reinterpret_cast<uint4 const*>(&sO(pass * kRowsAtATime + row_of(lane), column_of(lane))));
      RowStore<Element> const out = store_at(pass);
      if (out.exists) {
        device::store(reinterpret_cast<uint4*>(out.address), values);
      }
    }
    device::sync_warp();  // the slab is free
  }
};

}  // namespace pyflash::sm90
