// Scores of a block to P, and P with dP to dS, in the accumulators of a warp.
#pragma once

#include <cute/tensor_impl.hpp>

#include "cute_kernels/alibi.h"
#include "cute_kernels/device.h"
#include "cute_kernels/dropout.h"
#include "cute_kernels/row_softmax.h"
#include "cute_kernels/sm80/backward/problem.h"
#include "cute_kernels/sm80/copy.h"
#include "cute_kernels/sm80/gemm.h"
#include "cute_kernels/softcap.h"
#include "cute_kernels/variant/gradient.h"

namespace pyflash::sm80::backward {

using namespace cute;
using device::Site;

// Tile m of 16 keys of an accumulator, by rows and columns: (2,(2,MMA_N)).
template <class Acc>
CUTE_DEVICE auto rows_of_tile(Acc& acc, int m) {
  constexpr int kM = size<1>(Acc{});
  constexpr int kN = size<2>(Acc{});
  return make_tensor(acc.data() + 4 * m,
                     Layout<Shape<_2, Shape<_2, Int<kN>>>, Stride<_2, Stride<_1, Int<4 * kM>>>>{});
}

// The pairs of tile m, of an accumulator Acc: those of row r and columns c and c + 1 at c + r.
template <class Acc, class Pairs>
CUTE_DEVICE auto pairs_of_tile(Pairs& pairs, int m) {
  constexpr int kM = size<1>(Acc{});
  constexpr int kN = size<2>(Acc{});
  return make_tensor(pairs.data() + 2 * m, Layout<Shape<_2, Int<kN>>, Stride<_1, Int<2 * kM>>>{});
}

// Accumulators are those of S^T: (MMA,MMA_M,MMA_N) of (keys, queries). A thread has two keys of each tile, eight apart, and two of every
// eight queries.
template <class Traits, BackwardFeatures kFeatures, class Variant>
struct Scores {
  using Element = typename Traits::Element;

  AttentionGradients const& problem;
  Tile<kFeatures> const& tile;
  Coord const first;  // of the thread: key and query, in the tile and the block
  int const warp_key;
  float const scale_log2;
  variant::Given<Variant> const given;

  // The tanh of a score that does not count: so low that P is 0, and the square finite.
  static constexpr float kMaskedTanh = -1e18f;
  static constexpr int kKeyStep = 8;  // from a thread's row to the next one
  static constexpr int kTiles = Traits::kKeyTiles;
  static constexpr int kRows = 2 * kTiles;

  CUTE_DEVICE Scores(Tile<kFeatures> const& tile, Coord const& first, int warp_key,
                     variant::Given<Variant> const& given)
      : problem(tile.problem),
        tile(tile),
        first(first),
        warp_key(warp_key),
        scale_log2(tile.problem.softmax_scale * kLog2e),
        given(given) {}

  // The column of a thread's c-th, counted from its first.
  CUTE_DEVICE static constexpr int column_of(int c) { return 8 * (c / 2) + c % 2; }

  // S^T to P^T = 2^(scale S^T - lse), in place, and as pairs. Scores that are capped, outer tanh(inner S^T), become P^T
  // times the derivative by S^T but for the scale, (1 - tanh) (1 + tanh), in place of P^T; so do those of a variant that has
  // slopes. lse2: of the block.
  template <class Acc, class Pairs, class Block>
  CUTE_DEVICE void to_P(Acc& acc, Pairs& pairs, float const* lse2, Block const& block) const {
    device::at(Site::lse_s2r);
    Tensor P = rows_by_columns(acc);  // ((2,MMA_M),(2,MMA_N))
    int const head = block.head, m_block = block.m_block;
    if constexpr (variant::kIsVariant<Variant>) {
      bool const is_cut = cuts(m_block) || (m_block + 1) * Traits::kBlockM > tile.queries().length;
      CUTE_UNROLL
      for (int m = 0; m < kTiles; ++m) {
        Tensor of_tile = rows_of_tile(acc, m);  // (2,(2,MMA_N))
        Tensor pairs_of = pairs_of_tile<Acc>(pairs, m);
        variant::variant_scores_to_P<Element, Variant>(
            of_tile, tile, given, place(m, block, block.is_cut, is_cut), column_of,
            [&](int c) { return numbers_at(lse2, c); },
            [&](int i) -> uint32_t& { return pairs_of(i); });
      }
      if constexpr (!variant::kMakesPairs<Variant, kFeatures>) {
        pack(acc, pairs);
      }
      return;
    }
    bool caps = false;
    if constexpr (kFeatures.softcap) {
      caps = problem.softcap.cap != 0;
    }
    if constexpr (kFeatures.alibi_slopes) {
      add_slopes(P, head, m_block);
    }
    float const scale = caps ? problem.softcap.outer : scale_log2;
    if (caps) {
      CUTE_UNROLL
      for (int i = 0; i < size(P); ++i) {
        P(i) = pyflash::tanh(problem.softcap.inner * P(i));
      }
      if (cuts(m_block)) {
        mask(P, m_block, kMaskedTanh);
      }
    }
    CUTE_UNROLL
    for (int c = 0; c < size<1>(P); c += 2) {
      float2 const lse = numbers_at(lse2, c);
      CUTE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        float const p0 = device::exp2(fmaf(P(r, c), scale, -lse.x));
        float const p1 = device::exp2(fmaf(P(r, c + 1), scale, -lse.y));
        if (caps) {
          pairs.data()[kTiles * c + r] = device::pack2(p0, p1, Element{});
          P(r, c) = p0 * (1.f - P(r, c)) * (1.f + P(r, c));
          P(r, c + 1) = p1 * (1.f - P(r, c + 1)) * (1.f + P(r, c + 1));
        } else {
          P(r, c) = p0;
          P(r, c + 1) = p1;
        }
      }
    }
    if (caps) {
      return;
    }
    if (cuts(m_block)) {
      mask(P, m_block, 0.f);
    }
    pack(acc, pairs);
  }

  // Sets what dropout leaves out to 0: of P^T, as pairs, and of dP^T.
  template <class Pairs, class Acc, class Block>
  CUTE_DEVICE void drop(Pairs& of_P, Acc& acc_dP, Dropout const& dropout,
                        Block const& block) const {
    DropoutBytes const bytes = load_dropout(dropout, problem.heads, tile.sequence(), block.head);
    CUTE_UNROLL
    for (int m = 0; m < kTiles; ++m) {
      DropoutOfColumns<Traits::kQueriesOfWarp> dropped;
      dropped.draw(bytes, dropout.largest_kept, tile.first_key + first.row + m * Traits::kMmaM,
                   block.m_block * Traits::kBlockM + first.column);
      dropped.apply_to_pairs(pairs_of_tile<Acc>(of_P, m));
      dropped.apply_to_rows(rows_of_tile(acc_dP, m));
    }
  }

  // dP^T to dS^T = P^T (dP^T - delta), as pairs. factor: of dP^T, for dropout. acc_P: as to_P leaves it.
  template <class Acc, class Pairs>
  CUTE_DEVICE void to_dS(Acc& acc_P, Acc& acc_dP, Pairs& pairs, float const* minus_delta,
                         float factor = 1.f) const {
    device::at(Site::dS);
    Tensor P = rows_by_columns(acc_P);    // ((2,MMA_M),(2,MMA_N))
    Tensor dS = rows_by_columns(acc_dP);  // ((2,MMA_M),(2,MMA_N))
    CUTE_UNROLL
    for (int c = 0; c < size<1>(P); c += 2) {
      float2 const of_queries = numbers_at(minus_delta, c);
      CUTE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if constexpr (kFeatures.dropout) {
          dS(r, c) = P(r, c) * fmaf(dS(r, c), factor, of_queries.x);
          dS(r, c + 1) = P(r, c + 1) * fmaf(dS(r, c + 1), factor, of_queries.y);
          continue;
        }
        dS(r, c) = P(r, c) * (dS(r, c) + of_queries.x);
        dS(r, c + 1) = P(r, c + 1) * (dS(r, c + 1) + of_queries.y);
      }
    }
    pack(acc_dP, pairs);
  }

  // The same where gradients of captured tensors are summed, with these. of_P: the pairs of P^T.
  template <class Acc, class Pairs, class Block>
  CUTE_DEVICE void to_dS_and_sums(Acc& acc_P, Pairs const& of_P, Acc& acc_dP, Pairs& pairs,
                                  float const* minus_delta, Block const& block) const {
    Tensor P_or_S = rows_by_columns(acc_P);  // ((2,MMA_M),(2,MMA_N))
    Tensor G = rows_by_columns(acc_dP);      // ((2,MMA_M),(2,MMA_N))
    CUTE_UNROLL
    for (int c = 0; c < size<1>(G); c += 2) {
      float2 const of_queries = numbers_at(minus_delta, c);
      CUTE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        float2 P = {P_or_S(r, c), P_or_S(r, c + 1)};
        if constexpr (variant::kKeepsScores<Variant, kFeatures>) {
          P = device::unpack2(of_P.data()[kTiles * c + r], Element{});
        }
        G(r, c) = P.x * (G(r, c) + of_queries.x);
        G(r, c + 1) = P.y * (G(r, c + 1) + of_queries.y);
      }
    }
    CUTE_UNROLL
    for (int m = 0; m < kTiles; ++m) {
      Tensor of_tile = rows_of_tile(acc_dP, m);  // (2,(2,MMA_N))
      variant::sum_captured<Variant>(rows_of_tile(acc_P, m), of_tile, tile, given,
                                     place(m, block, false, false), column_of);
    }
    pack(acc_dP, pairs);
  }

 private:
  // Of tile m.
  template <class Block>
  CUTE_DEVICE variant::Place place(int m, Block const& block, bool cuts_variant,
                                   bool cuts_band) const {
    return {tile.first_key + first.row + m * Traits::kMmaM,
            block.m_block * Traits::kBlockM + first.column, block.head, cuts_variant, cuts_band};
  }

  template <class Acc, class Pairs>
  CUTE_DEVICE static void pack(Acc const& acc, Pairs& pairs) {
    CUTE_UNROLL
    for (int k = 0; k < size<2>(pairs); ++k) {
      pack_step<Element>(acc, pairs, k);
    }
  }

  // The numbers of the thread's queries c and c + 1.
  CUTE_DEVICE float2 numbers_at(float const* numbers, int c) const {
    return device::load(reinterpret_cast<float2 const*>(numbers + first.column + 4 * c));
  }

  // Whether some key of the warp is not attended by some query of the block.
  // NOTE: queries past the end are no matter: P is 0 there, since lse is infinite.
  CUTE_DEVICE bool cuts(int m_block) const {
    Interval const uncut = tile.queries_from(warp_key).of_all(Traits::kWarpKeys);
    return warp_key + Traits::kWarpKeys > tile.keys().length ||
           m_block * Traits::kBlockM < uncut.begin ||
           (kFeatures.left_window && (m_block + 1) * Traits::kBlockM > uncut.end);
  }

  // Sets P, or what P is computed of, to `value` where it does not count.
  template <class Rows>
  CUTE_DEVICE void mask(Rows& P, int m_block, float value) const {
    int const first_query = m_block * Traits::kBlockM + first.column;
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      int const key = tile.first_key + first.row + kKeyStep * r;
      auto const queries = tile.queries_from(key);
      int const begin = queries.begin(0) - first_query;
      // NOTE: keys past the end score 0, which may be far above lse.
      int const end = (key < tile.keys().length ? queries.end(0) : 0) - first_query;
      CUTE_UNROLL
      for (int c = 0; c < size<1>(P); ++c) {
        if (column_of(c) < begin || column_of(c) >= end) {
          P(r, c) = value;
        }
      }
    }
  }

  template <class Rows>
  CUTE_DEVICE void add_slopes(Rows& S, int head, int m_block) const {
    if (problem.alibi_slopes.data == nullptr) {
      return;
    }
    float const slope = load_slope<Element>(problem.alibi_slopes, problem.inverse_scale_log2,
                                            tile.sequence(), head);
    int const aligned = aligned_column(m_block * Traits::kBlockM + first.column,
                                       tile.queries().length, tile.keys().length);
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      add_alibi(S, r, slope, tile.first_key + first.row + kKeyStep * r - aligned, column_of);
    }
  }
};

}  // namespace pyflash::sm80::backward
