// O and lse from registers to global memory. The accumulator of a warp's 16 rows goes through shared memory, a slab of
// columns at a time, so that every store instruction writes whole rows of the slab.
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sinks.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/forward/problem.h"
#include "cute_kernels/sm90/forward/shape.h"
#include "cute_kernels/sm90/gemm.h"
#include "cute_kernels/sm90/row_stores.h"

namespace pyflash::sm90 {

using namespace cute;

// Where a row of O and lse goes, or that it does not exist.
struct RowOut {
  bool exists;
  int64_t o;  // offsets in elements
  int64_t lse;
};
template <class Traits, ForwardFeatures kFeatures>
CUTE_DEVICE RowOut row_out(KernelParams const& params, Tile const& tile, int first_query, int row) {
  auto const& problem = params.problem;
  PackedRow const unpacked = unpack_row<Traits>(params, row);
  int const group = Traits::kPackGqa ? params.order.by_group.divisor : 1;
  int const head = tile.head * group + unpacked.head;
  int const query = first_query + unpacked.query;
  return {.exists = row_exists<Traits, kFeatures>(params, tile, first_query, unpacked),
          .o = tile.batch * problem.o_strides.batch + head * problem.o_strides.head +
               (tile.q_rows.begin + query) * problem.o_strides.row,
          .lse = tile.batch * problem.lse_strides.batch + head * problem.lse_strides.head +
                 tile.q_rows.begin + query};
}

// The sinks of this thread's rows that exist.
template <class Traits, class CoordTensor, class Sinks>
CUTE_DEVICE void load_sinks(KernelParams const& params, Tile const& tile, int first_query,
                            CoordTensor const& coords, Sinks& sinks) {
  device::at(device::Site::sinks_g2r);
  Tensor by_rows = rows_by_columns(coords);  // ((2,MMA_M),(2,V,MMA_K)) of (row, column)
  int const group = Traits::kPackGqa ? params.order.by_group.divisor : 1;
  CUTE_UNROLL
  for (int r = 0; r < 2; ++r) {
    PackedRow const row = unpack_row<Traits>(params, get<0>(by_rows(r, 0)));
    int const query = first_query + row.query;
    if (query < tile.q_rows.length) {
      sinks(r) = load_sink<typename Traits::Element>(params.problem.sinks,
                                                     tile.head * group + row.head, query);
    }
  }
}

// lse of a finished tile. coords: (row, column), partitioned like acc_O.
template <class Traits, ForwardFeatures kFeatures, class Lse, class CoordTensor>
CUTE_DEVICE void store_lse(KernelParams const& params, Tile const& tile, int first_query,
                           Lse const& lse, CoordTensor const& coords) {
  device::at(device::Site::lse_r2g);
  Tensor by_rows = rows_by_columns(coords);  // ((2,MMA_M),(2,V,MMA_K)) of (row, column)
  CUTE_UNROLL
  for (int r = 0; r < 2; ++r) {
    RowOut const out = row_out<Traits, kFeatures>(params, tile, first_query, get<0>(by_rows(r, 0)));
    if (out.exists && get<1>(by_rows(0, 0)) == 0) {
      device::store(params.problem.lse + out.lse, lse(r));
    }
  }
}

// Where keys are split: a part of a tile, O and lse in fp32.
template <class Traits, ForwardFeatures kFeatures, class AccO, class Lse, class CoordTensor>
CUTE_DEVICE void store_partial(KernelParams const& params, Tile const& tile, int first_query,
                               AccO const& acc_O, Lse const& lse, CoordTensor const& coords) {
  auto const& problem = params.problem;
  Tensor O = rows_by_columns(acc_O);         // ((2,MMA_M),(2,V,MMA_K))
  Tensor by_rows = rows_by_columns(coords);  // ((2,MMA_M),(2,V,MMA_K)) of (row, column)
  CUTE_UNROLL
  for (int r = 0; r < 2; ++r) {
    RowOut const out = row_out<Traits, kFeatures>(params, tile, first_query, get<0>(by_rows(r, 0)));
    int64_t const partial = tile.split * problem.lse_strides.split + out.lse;
    if (out.exists && get<1>(by_rows(0, 0)) == 0) {
      device::at(device::Site::lse_r2g);
      device::store(problem.lse_partial + partial, lse(r));
    }
    if constexpr (kFeatures.fixed_splits) {
      if (lse(r) == -INFINITY) {  // of which nobody reads O
        continue;
      }
    }
    device::at(device::Site::O_r2g);
    CUTE_UNROLL
    for (int c = 0; c < size<1>(O); c += 2) {
      int const column = get<1>(by_rows(0, c));
      if (out.exists && (!kFeatures.predicated_head_dim || column < problem.d_head)) {
        device::store(
            reinterpret_cast<float2*>(problem.o_partial + partial * problem.d_head + column),
            float2{O(r, c), O(r, c + 1)});
      }
    }
  }
}

// Where keys are shared: a part of a tile, O and lse in fp32, a row for each of the tile's.
// store_lse(row of all parts, lse), store_pair(pair of columns of all parts, number, number)
template <class Traits, ForwardFeatures kFeatures, class AccO, class Lse, class CoordTensor,
          class StoreLse, class StorePair>
CUTE_DEVICE void store_part_by(KernelParams const& params, Tile const& tile, int first_query,
                               AccO const& acc_O, Lse const& lse, CoordTensor const& coords,
                               StoreLse const& store_lse, StorePair const& store_pair) {
  auto const& problem = params.problem;
  Tensor O = rows_by_columns(acc_O);         // ((2,MMA_M),(2,V,MMA_K))
  Tensor by_rows = rows_by_columns(coords);  // ((2,MMA_M),(2,V,MMA_K)) of (row, column)
  CUTE_UNROLL
  for (int r = 0; r < 2; ++r) {
    int const row = get<0>(by_rows(r, 0));
    bool const exists =
        row_exists<Traits, kFeatures>(params, tile, first_query, unpack_row<Traits>(params, row));
    int64_t const part = int64_t(tile.split) * params.shares.rows_of_part + row;
    if (exists && get<1>(by_rows(0, 0)) == 0) {
      device::at(device::Site::lse_r2g);
      store_lse(part, lse(r));
    }
    device::at(device::Site::O_r2g);
    CUTE_UNROLL
    for (int c = 0; c < size<1>(O); c += 2) {
      int const column = get<1>(by_rows(0, c));
      if (exists && (!kFeatures.predicated_head_dim || column < problem.d_head)) {
        store_pair((part * problem.d_head + column) / 2, O(r, c), O(r, c + 1));
      }
    }
  }
}
// With a tag, where a CTA of this launch merges it.
template <class Traits, ForwardFeatures kFeatures, class AccO, class Lse, class CoordTensor>
CUTE_DEVICE void store_part(KernelParams const& params, Tile const& tile, int first_query,
                            AccO const& acc_O, Lse const& lse, CoordTensor const& coords) {
  using device::Tagged;
  auto const& problem = params.problem;
  auto const store_by = [&](auto const& store_lse, auto const& store_pair) {
    store_part_by<Traits, kFeatures>(params, tile, first_query, acc_O, lse, coords, store_lse,
                                     store_pair);
  };
  if (uint64_t const tag = params.shares.tag; tag != 0) {
    store_by(
        [&](int64_t row, float value) {
          device::store_tagged(reinterpret_cast<Tagged*>(problem.lse_partial) + row,
                               {tag, value, 0});
        },
        [&](int64_t pair, float low, float high) {
          device::store_tagged(reinterpret_cast<Tagged*>(problem.o_partial) + pair,
                               {tag, low, high});
        });
  } else {
    store_by([&](int64_t row, float value) { device::store(problem.lse_partial + row, value); },
             [&](int64_t pair, float low, float high) {
               device::store(reinterpret_cast<float2*>(problem.o_partial) + pair,
                             float2{low, high});
             });
  }
}

// A finished tile. memory: shared, of the warpgroup.
template <class Traits, ForwardFeatures kFeatures, class AccO>
CUTE_DEVICE void store_O(KernelParams const& params, Tile const& tile, int first_query,
                         AccO const& acc_O, typename Traits::Element* memory) {
  using Element = typename Traits::Element;
  constexpr int kSlab = Traits::kSlab;
  using Stores = SlabStores<Element, kSlab>;
  auto const& problem = params.problem;
  int const tidx = device::fresh_thread_idx();
  int const lane = tidx % 32;
  int const warp = tidx % kWarpgroup / 32;
  Tensor O = rows_by_columns(acc_O);  // ((2,MMA_M),(2,V,MMA_K))

  int const column = Stores::column_of(lane);  // in the slab
  int const first_row = warp * kWarpRows + Stores::row_of(lane);
  RowOut const first = row_out<Traits, kFeatures>(params, tile, first_query, first_row);
  Element* const o = static_cast<Element*>(problem.o) + column;
  int64_t const step = Stores::kRowsAtATime * problem.o_strides.row;
  CUTE_UNROLL
  for (int slab = 0; slab < Traits::kHeadDim; slab += kSlab) {
    auto store_at = [&](int pass) {
      int const row = first_row + pass * Stores::kRowsAtATime;
      // Packed rows lie anywhere.
      RowOut const out = Traits::kPackGqa
                             ? row_out<Traits, kFeatures>(params, tile, first_query, row)
                             : RowOut{.exists = first_query + row < tile.q_rows.length,
                                      .o = first.o + pass * step,
                                      .lse = 0};
      bool const has_columns = !kFeatures.predicated_head_dim || slab + column < problem.d_head;
      return RowStore<Element>{.exists = out.exists && has_columns, .address = o + out.o + slab};
    };
    Stores::run(
        memory + warp * kWarpRows * kSlab, lane, device::Site::O_r2s, device::Site::O_s2g, slab,
        [&](int r, int c) { return O(r, c); }, store_at);
  }
}

}  // namespace pyflash::sm90
