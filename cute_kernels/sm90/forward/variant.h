// What a variant makes of a warpgroup's scores of a block of keys.
#pragma once

#include <cmath>

#include <cute/tensor.hpp>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/row_softmax.h"
#include "cute_kernels/sm90/forward/problem.h"
#include "cute_kernels/sm90/gemm.h"
#include "cute_kernels/softcap.h"

namespace pyflash::sm90 {

using namespace cute;

// What scores of a row share.
template <class Variant>
struct ScoreRow {
  int head;
  int query;
  typename Variant::Uniform uniform;
  typename Variant::Row row;
};

// Raw scores to those of the variant: scaled, capped, through its score function where it has one; -inf where its mask hides a
// pair, if it cuts the block. first_query: the warpgroup's.
template <class Traits, ForwardFeatures kFeatures, class Variant, class AccS>
CUTE_DEVICE void make_variant_scores(AccS& acc_S, ParamsWith<Variant> const& params,
                                     Tile const& tile, int first_query, int n_block, bool is_cut) {
  Tensor S = rows_by_columns(acc_S);  // ((2,MMA_M),(2,V,MMA_N))
  Tensor coords = coords_of<Traits::kBlockN>(device::fresh_thread_idx() % kWarpgroup);
  Tensor by_rows = rows_by_columns(coords);
  auto const& problem = params.problem;
  int const group = Traits::kPackGqa ? params.order.by_group.divisor : 1;
  variant::Lengths const lengths{tile.q_rows.length, tile.k_rows.length, 0, 0};
  int const first_key = n_block * Traits::kBlockN;
  ScoreRow<Variant> rows[2];
  CUTE_UNROLL
  for (int r = 0; r < 2; ++r) {
    PackedRow const packed = unpack_row<Traits>(params, get<0>(by_rows(r, 0)));
    rows[r].head = tile.head * group + packed.head;
    rows[r].query = first_query + packed.query;
    rows[r].uniform = Variant::uniform(params.captured, lengths, tile.batch, rows[r].head);
    rows[r].row = Variant::row(params.captured, lengths, rows[r].uniform, tile.batch, rows[r].head,
                               rows[r].query);
  }
  auto scaled = [&](float raw) {
    if constexpr (kFeatures.softcap) {
      if (problem.softcap.cap != 0.f) {
        return capped_exponent(problem.softcap, raw) * kLn2;
      }
    }
    return raw * problem.softmax_scale;
  };
  auto make = [&](auto cut) {
    CUTE_UNROLL
    for (int c = 0; c < size<1>(S); ++c) {
      int const key = first_key + get<1>(by_rows(0, c));
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        auto const& [head, query, uniform, row] = rows[r];
        // NOTE: of rows of one head the compiler computes it once.
        auto const column =
            Variant::column(params.captured, lengths, uniform, tile.batch, head, key);
        if constexpr (Variant::kHasScore) {
          S(r, c) = Variant::score(params.captured, lengths, uniform, row, column, tile.batch, head,
                                   query, key, scaled(S(r, c)));
        }
        if (cut.value && !Variant::counts(params.captured, lengths, uniform, row, column,
                                          tile.batch, head, query, key)) {
          S(r, c) = -INFINITY;
        }
      }
    }
  };
  if constexpr (Variant::kHasMask) {
    if (is_cut) {
      make(true_type{});
      return;
    }
  }
  if constexpr (Variant::kHasScore) {
    make(false_type{});
  }
}

}  // namespace pyflash::sm90
