// What a variant makes of a thread's scores of a block of keys.
#pragma once

#include <cmath>

#include <cute/tensor_impl.hpp>

#include "cute_kernels/features.h"
#include "cute_kernels/row_softmax.h"
#include "cute_kernels/sm80/copy.h"
#include "cute_kernels/sm80/forward/problem.h"
#include "cute_kernels/sm80/gemm.h"
#include "cute_kernels/softcap.h"
#include "cute_kernels/variant/kernel_params.h"

namespace pyflash::sm80 {

using namespace cute;

// Raw scores to those of the variant: scaled, capped, through its score function where it has one; where kCut, -inf where its
// mask hides a pair. first: the place in the block of the thread's first score.
template <class Traits, ForwardFeatures kFeatures, class Variant, bool kCut, class AccS,
          class Params>
CUTE_DEVICE void make_variant_scores(AccS& acc_S, Params const& params, BlockCoord const& coord,
                                     variant::Lengths const& lengths, Coord const& first,
                                     int n_block) {
  if constexpr (!Variant::kHasScore && !kCut) {
    return;
  }
  using Rows = typename Traits::AccRows;
  using Columns = typename Traits::AccColumnsS;
  Tensor S = rows_by_columns(acc_S);  // ((2,MMA_M),(2,MMA_N))
  auto const& captured = params.captured;
  auto const uniform = Variant::uniform(captured, lengths, coord.batch, coord.head);
  auto query_of = [&](int r) { return coord.m_block * Traits::kBlockM + first.row + Rows{}(r); };
  auto scaled = [&](float raw) {
    if constexpr (kFeatures.softcap) {
      if (params.softcap.cap != 0.f) {
        return capped_exponent(params.softcap, raw) * kLn2;
      }
    }
    return raw * params.softmax_scale;
  };
  typename Variant::Row rows[decltype(size<0>(S))::value];
  CUTE_UNROLL
  for (int r = 0; r < size<0>(S); ++r) {
    rows[r] = Variant::row(captured, lengths, uniform, coord.batch, coord.head, query_of(r));
  }
  CUTE_UNROLL
  for (int c = 0; c < size<1>(S); ++c) {
    int const key = n_block * Traits::kBlockN + first.column + Columns{}(c);
    auto const column = Variant::column(captured, lengths, uniform, coord.batch, coord.head, key);
    CUTE_UNROLL
    for (int r = 0; r < size<0>(S); ++r) {
      if constexpr (Variant::kHasScore) {
        S(r, c) = Variant::score(captured, lengths, uniform, rows[r], column, coord.batch,
                                 coord.head, query_of(r), key, scaled(S(r, c)));
      }
      if (kCut && !Variant::counts(captured, lengths, uniform, rows[r], column, coord.batch,
                                   coord.head, query_of(r), key)) {
        S(r, c) = -INFINITY;
      }
    }
  }
}

}  // namespace pyflash::sm80
