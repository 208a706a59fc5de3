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
  auto const prepared = Variant::prepared(params.prepared, coord.batch, coord.head);
  int const first_query = coord.m_block * Traits::kBlockM + first.row;
  int const first_key = n_block * Traits::kBlockN + first.column;
  bool const is_capped = kFeatures.softcap && params.softcap.cap != 0.f;
  float const scale = is_capped ? kLn2 : params.softmax_scale;
  auto uncapped_or_capped = [&](float raw) {
    return is_capped ? capped_exponent(params.softcap, raw) : raw;
  };
  typename Variant::Row rows[decltype(size<0>(S))::value];
  CUTE_UNROLL
  for (int r = 0; r < size<0>(S); ++r) {
    rows[r] = Variant::row(captured, lengths, prepared, uniform, coord.batch, coord.head,
                           first_query + Rows{}(r));
  }
  auto make = [&](auto streamed) {
    CUTE_UNROLL
    for (int c = 0; c < size<1>(S); ++c) {
      int const offset = Columns{}(c);
      auto const column = Variant::column(captured, lengths, prepared, uniform, coord.batch,
                                          coord.head, first_key, offset);
      CUTE_UNROLL
      for (int r = 0; r < size<0>(S); ++r) {
        auto const distance =
            Variant::distance(captured, lengths, prepared, uniform, coord.batch, coord.head,
                              first_key - first_query, offset - Rows{}(r));
        int const query = first_query + Rows{}(r);
        if constexpr (Variant::kHasScore) {
          S(r, c) = Variant::template score<streamed.value>(
              captured, lengths, uniform, rows[r], column, distance, coord.batch, coord.head, query,
              first_key, offset, uncapped_or_capped(S(r, c)), scale);
        }
        if (kCut && !Variant::template counts<streamed.value>(
                        captured, lengths, uniform, rows[r], column, distance, coord.batch,
                        coord.head, query, first_key, offset)) {
          S(r, c) = -INFINITY;
        }
      }
    }
  };
  if constexpr (Variant::kStreams) {
    if (Variant::is_streamed(captured, n_block * Traits::kBlockN, Traits::kBlockN)) {
      make(true_type{});
      return;
    }
  }
  make(false_type{});
}

}  // namespace pyflash::sm80
