// O and lse from registers to global memory. A quad of lanes holds 8 adjacent columns, two in a lane; four lanes exchange
// those of four such groups, so that each stores 16 bytes.
#pragma once

#include <cute/tensor.hpp>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sinks.h"
#include "cute_kernels/sm90/gemm.h"
#include "cute_kernels/sm90/problem.h"

namespace pyflash::sm90 {

using namespace cute;

// words[i] of lane p of a quad becomes words[p] of lane i.
CUTE_DEVICE void transpose_quad(uint32_t (&words)[4], int lane) {
  CUTE_UNROLL
  for (int distance = 2; distance > 0; distance /= 2) {
    bool const upper = lane & distance;
    CUTE_UNROLL
    for (int i = 0; i < 4; ++i) {
      if ((i & distance) == 0) {
        uint32_t& low = words[i];
        uint32_t& high = words[i + distance];
        uint32_t const received =
            device::bits(device::shfl_xor(device::from_bits(upper ? low : high), distance));
        low = upper ? received : low;
        high = upper ? high : received;
      }
    }
  }
}

// Where a row of O and lse goes, or that it does not exist.
struct RowOut {
  bool exists;
  int64_t o;  // offsets in elements
  int64_t lse;
};
template <class Traits, ForwardFeatures kFeatures>
CUTE_DEVICE RowOut row_out(KernelParams const& params, Tile const& tile, int first_query, int row) {
  ForwardParams const& problem = params.problem;
  PackedRow const unpacked = unpack_row<Traits>(params, row);
  int const group = Traits::kPackGqa ? params.order.by_group.divisor : 1;
  int const head = tile.head * group + unpacked.head;
  int const query = first_query + unpacked.query;
  bool const in_warpgroup =
      !Traits::kPackGqa ||
      unpacked.query < TileSchedule<Traits, kFeatures>::queries_per_warpgroup(params);
  return {.exists = in_warpgroup && query < tile.q_rows.length,
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
      sinks(r) =
          load_sink<typename Traits::Element>(params.problem, tile.head * group + row.head, query);
    }
  }
}

// Stores a finished tile, or, where keys are split, its part of one in fp32. coords: (row, column), partitioned like acc_O.
template <class Traits, ForwardFeatures kFeatures, class AccO, class Lse, class CoordTensor>
CUTE_DEVICE void store_O(KernelParams const& params, Tile const& tile, int first_query,
                         AccO const& acc_O, Lse const& lse, CoordTensor const& coords) {
  using Element = typename Traits::Element;
  ForwardParams const& problem = params.problem;
  Tensor O = rows_by_columns(acc_O);           // ((2,MMA_M),(2,V,MMA_K))
  Tensor by_rows = rows_by_columns(coords);    // ((2,MMA_M),(2,V,MMA_K)) of (row, column)
  int const lane = get<1>(by_rows(0, 0)) / 2;  // in the quad
  bool const is_partial = problem.num_splits > 1;
  CUTE_UNROLL
  for (int r = 0; r < 2; ++r) {
    RowOut const out = row_out<Traits, kFeatures>(params, tile, first_query, get<0>(by_rows(r, 0)));
    int64_t const partial = tile.split * problem.lse_strides.split + out.lse;
    if (out.exists && lane == 0) {
      device::at(device::Site::lse_r2g);
      device::store(is_partial ? problem.lse_partial + partial : problem.lse + out.lse, lse(r));
    }
    device::at(device::Site::O_r2g);
    if (is_partial) {
      CUTE_UNROLL
      for (int c = 0; c < size<1>(O); c += 2) {
        int const column = get<1>(by_rows(0, c));
        if (out.exists && (!kFeatures.predicated_head_dim || column < problem.d_head)) {
          device::store(
              reinterpret_cast<float2*>(problem.o_partial + partial * problem.d_head + column),
              float2{O(r, c), O(r, c + 1)});
        }
      }
      continue;
    }
    CUTE_UNROLL
    for (int c = 0; c < size<1>(O); c += 8) {  // 8 of this lane's columns are 32 of the quad's
      uint32_t words[4];
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        words[i] = device::pack2(O(r, c + 2 * i), O(r, c + 2 * i + 1), Element{});
      }
      transpose_quad(words, lane);
      int const column = 4 * c + 8 * lane;
      if (out.exists && (!kFeatures.predicated_head_dim || column < problem.d_head)) {
        device::store(reinterpret_cast<uint4*>(static_cast<Element*>(problem.o) + out.o + column),
                      uint4{words[0], words[1], words[2], words[3]});
      }
    }
  }
}

}  // namespace pyflash::sm90
