// Rows from accumulators to global memory, in 16 bits: a warp's 16 rows go through shared memory, a slab of columns at a time,
// so that every store instruction writes whole rows of the slab.
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/cute.h"
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

  // memory: shared, of the warp. value_at(r, c): column c, as a thread holds them, of row r of an accumulator; the slab begins
  // at `first_column`. store_at(pass): a RowStore.
  template <class ValueAt, class StoreAt>
  CUTE_DEVICE static void run(Element* memory, int lane, device::Site to_shared,
                              device::Site to_global, int first_column, ValueAt const& value_at,
                              StoreAt const& store_at) {
    using Slab = Slabs<kSlab>;
    static_assert(sizeof(Element) == kElementBytes);
    typename Slab::template OneSlab<kWarpRows> const layout;  // (kWarpRows,kSlab)
    device::SmemAddress const slab = device::smem_address(memory);
    device::at(to_shared);
    // Two of the MMA's 8-column groups, by rows 0-7 and 8-15 each, are the four matrices of a store.
    device::SmemAddress const first_written = Slab::address(slab, layout, lane % 16, lane / 16 * 8);
    CUTE_UNROLL
    for (int c = 0; c < kSlab; c += 16) {
      uint32_t words[4];
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        int const pair = (first_column + c) / 4 + i / 2 * 2;  // of this lane's columns
        words[i] = device::pack2(value_at(i % 2, pair), value_at(i % 2, pair + 1), Element{});
      }
      device::store_matrices(words, Slab::further(first_written, 0, c));
    }
    device::sync_warp();
    device::at(to_global);
    device::SmemAddress const first_read =
        Slab::address(slab, layout, row_of(lane), column_of(lane));
    uint4 values[kPasses];
    CUTE_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      values[pass] = device::load_shared(Slab::further(first_read, pass * kRowsAtATime, 0));
    }
    CUTE_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      RowStore<Element> const out = store_at(pass);
      if (out.exists) {
        device::store_global(reinterpret_cast<uint4*>(out.address), values[pass]);
      }
    }
    device::sync_warp();  // the slab is free
  }
};

}  // namespace pyflash::sm90
