// Scores of a block to P, and P with dP to dS, in the accumulators of a computing warpgroup.
#pragma once

#include "cute_kernels/alibi.h"
#include "cute_kernels/device_sm90.h"
#include "cute_kernels/dropout.h"
#include "cute_kernels/row_softmax.h"
#include "cute_kernels/sm90/backward/mask.h"
#include "cute_kernels/sm90/backward/problem.h"
#include "cute_kernels/sm90/columns.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/gemm.h"
#include "cute_kernels/softcap.h"
#include "cute_kernels/variant/gradient.h"

namespace pyflash::sm90::backward {

using namespace cute;
using device::Site;

// Accumulators are those of S^T: (MMA,MMA_M,MMA_N) of (keys, queries). lse2, minus_delta: a number for each query, of which this thread's
// are the first two of every eight from there.
template <class Traits, BackwardFeatures kFeatures, class Variant>
struct Scores {
  using Element = typename Traits::Element;
  // dP^T is computed beside S^T, so that P^T and the derivative by S^T wait for it as pairs of 16 bits.
  static constexpr bool kPacksSlopes =
      Traits::kEarlyDP && kFeatures.softcap && !kFeatures.dropout && !variant::kIsVariant<Variant>;
  // to_P makes the operand: what it leaves in place of P^T is not P^T.
  static constexpr bool kMakesOperand = variant::kMakesPairs<Variant, kFeatures>;

  AttentionGradients const& problem;
  float const scale_log2;
  ScoreMask<Traits, kFeatures> const mask;
  variant::Given<Variant> const given;

  // The tanh of a score that does not count: so low that P is 0, and the square finite.
  static constexpr float kMaskedTanh = -1e18f;

  // S^T to P^T = 2^(scale S^T - lse), in place, and as an operand. Scores that are capped, outer tanh(inner S^T), become P^T
  // times the derivative by S^T but for the scale, (1 - tanh) (1 + tanh), in place of P^T; so do those of a variant that has
  // slopes.
  template <class Acc, class FragmentP, class Block>
  CUTE_DEVICE void to_P(Acc& acc, FragmentP& operand, float const* lse2, Block const& block) const {
    device::at(Site::lse_s2r);
    Tensor P = rows_by_columns(acc);  // ((2,MMA_M),(2,V,MMA_N))
    int const head = block.head, m_block = block.m_block;
    if constexpr (variant::kIsVariant<Variant>) {
      Tensor pairs = recast<uint32_t>(operand);
      bool const is_cut =
          mask.cuts(m_block) || (m_block + 1) * Traits::kBlockM > mask.tile.queries().length;
      variant::variant_scores_to_P<Element, Variant>(
          P, mask.tile, given, {mask.key(0), mask.first_query(m_block), head, block.is_cut, is_cut},
          [](int c) { return column_of(c); }, [&](int c) { return numbers_at(lse2, c); },
          [&](int i) -> uint32_t& { return pairs(i); });
      return;
    }
    if constexpr (kFeatures.softcap) {
      Tensor pairs = recast<uint32_t>(operand);
      // NOTE: in place: where branches make operands, ptxas serialises the MMAs of the overlapped loop.
      TanhOfSmall const of_small(problem.softcap);
      if (are_small(P, of_small.largest, m_block)) {
        to_tanh_of_small(P, of_small);
      } else {
        to_tanh(P, m_block);
      }
      exponentiate(P, lse2, [&](int i, float2 tanh, float2 capped) {
        pairs(i) = device::pack2(capped.x, capped.y, Element{});
        float2 const product = with_slopes(capped, tanh);
        P(i % 2, i / 2 * 2) = product.x;
        P(i % 2, i / 2 * 2 + 1) = product.y;
      });
      return;
    }
    if constexpr (kFeatures.alibi_slopes) {
      add_slopes(P, head, m_block);
    }
    CUTE_UNROLL
    for (int c = 0; c < size<1>(P); c += 2) {
      float2 const lse = numbers_at(lse2, c);
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        P(r, c) = device::exp2(fmaf(P(r, c), scale_log2, -lse.x));
        P(r, c + 1) = device::exp2(fmaf(P(r, c + 1), scale_log2, -lse.y));
      }
    }
    if (mask.cuts(m_block)) {
      mask.apply(P, m_block, 0.f);
    }
  }

  CUTE_DEVICE void draw(DropoutOfColumns<Traits::kBlockM>& dropped, Dropout const& dropout,
                        int head, int m_block) const {
    dropped.draw(load_dropout(dropout, problem.heads, mask.tile.sequence(), head),
                 dropout.largest_kept, mask.key(0), mask.first_query(m_block));
  }

  // dP^T to dS^T = P^T (dP^T - delta), in place. factor: of dP^T, for dropout. acc_P: as to_P leaves it.
  template <class Acc>
  CUTE_DEVICE static void to_dS(Acc const& acc_P, Acc& acc_dP, float const* minus_delta,
                                float factor = 1.f) {
    device::at(Site::dS);
    Tensor P = rows_by_columns(acc_P);    // ((2,MMA_M),(2,V,MMA_N))
    Tensor dS = rows_by_columns(acc_dP);  // ((2,MMA_M),(2,V,MMA_N))
    CUTE_UNROLL
    for (int c = 0; c < size<1>(P); c += 2) {
      float2 const of_queries = numbers_at(minus_delta, c);
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        if constexpr (kFeatures.dropout) {
          dS(r, c) = P(r, c) * fmaf(dS(r, c), factor, of_queries.x);
          dS(r, c + 1) = P(r, c + 1) * fmaf(dS(r, c + 1), factor, of_queries.y);
          continue;
        }
        dS(r, c) = P(r, c) * (dS(r, c) + of_queries.x);
        dS(r, c + 1) = P(r, c + 1) * (dS(r, c + 1) + of_queries.y);
      }
    }
  }

  // The same where gradients of captured tensors are summed, with these. operand: P^T.
  template <class Acc, class FragmentP, class Block>
  CUTE_DEVICE void to_dS_and_sums(Acc const& acc_P, FragmentP const& operand, Acc& acc_dP,
                                  float const* minus_delta, Block const& block, bool adds) const {
    if constexpr (variant::kKeepsScores<Variant, kFeatures>) {
      Tensor dP = rows_by_columns(acc_dP);  // ((2,MMA_M),(2,V,MMA_N))
      CUTE_UNROLL
      for (int c = 0; c < size<1>(dP); c += 2) {
        float2 const of_queries = numbers_at(minus_delta, c);
        CUTE_UNROLL
        for (int r = 0; r < 2; ++r) {
          dP(r, c) += of_queries.x;
          dP(r, c + 1) += of_queries.y;
        }
      }
      seeded_to_dS(operand, acc_dP);
    } else {
      to_dS(acc_P, acc_dP, minus_delta);
    }
    sum_captured(acc_P, acc_dP, block, adds);
  }
  // acc_dS: P^T (dP^T - delta). It becomes dS^T. adds: to the sums.
  template <class Acc, class Block>
  CUTE_DEVICE void sum_captured(Acc const& acc_S, Acc& acc_dS, Block const& block,
                                bool adds) const {
    Tensor S = rows_by_columns(acc_S);   // ((2,MMA_M),(2,V,MMA_N))
    Tensor G = rows_by_columns(acc_dS);  // ((2,MMA_M),(2,V,MMA_N))
    variant::sum_captured<Variant>(
        S, G, mask.tile, given,
        {mask.key(0), mask.first_query(block.m_block), block.head, false, false},
        [](int c) { return column_of(c); }, adds);
  }

  // -delta of each query, where dP^T is to be added to it.
  template <class Acc>
  CUTE_DEVICE static void seed_dP(Acc& acc_dP, float const* minus_delta) {
    device::at(Site::lse_s2r);
    Tensor dP = rows_by_columns(acc_dP);  // ((2,MMA_M),(2,V,MMA_N))
    CUTE_UNROLL
    for (int c = 0; c < size<1>(dP); c += 2) {
      float2 const of_queries = numbers_at(minus_delta, c);
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        dP(r, c) = of_queries.x;
        dP(r, c + 1) = of_queries.y;
      }
    }
  }

  // S^T of capped scores to P^T as an operand, and to P^T times the derivative by S^T but for the scale, 1 - tanh^2, as another.
  template <class Acc, class FragmentP, class Block>
  CUTE_DEVICE void to_P_and_slopes(Acc& acc, FragmentP& operand, FragmentP& times_slopes,
                                   float const* lse2, Block const& block) const {
    device::at(Site::lse_s2r);
    Tensor of_P = recast<uint32_t>(operand);
    Tensor of_products = recast<uint32_t>(times_slopes);
    Tensor S = rows_by_columns(acc);  // ((2,MMA_M),(2,V,MMA_N))
    TanhOfSmall const of_small(problem.softcap);
    if (are_small(S, of_small.largest, block.m_block)) {
      to_tanh_of_small(S, of_small);
      exponentiate(S, lse2, [&](int i, float2 tanh, float2 P) {
        of_P(i) = device::pack2(P.x, P.y, Element{});
        of_products(i) =
            device::less_square(of_P(i), device::pack2(tanh.x, tanh.y, Element{}), Element{});
      });
      return;
    }
    to_tanh(S, block.m_block);
    exponentiate(S, lse2, [&](int i, float2 tanh, float2 P) {
      float2 const product = with_slopes(P, tanh);
      of_P(i) = device::pack2(P.x, P.y, Element{});
      of_products(i) = device::pack2(product.x, product.y, Element{});
    });
  }

  // dP^T - delta to dS^T, in place, from P^T as an operand, or P^T times slopes.
  template <class FragmentP, class Acc>
  CUTE_DEVICE static void seeded_to_dS(FragmentP const& operand, Acc& acc_dP) {
    device::at(Site::dS);
    Tensor pairs = recast<uint32_t>(operand);  // in the order of the accumulator
    CUTE_UNROLL
    for (int i = 0; i < size(pairs); ++i) {
      float2 const P = device::unpack2(pairs(i), Element{});
      acc_dP(2 * i) *= P.x;
      acc_dP(2 * i + 1) *= P.y;
    }
  }

 private:
  CUTE_DEVICE static float2 numbers_at(float const* numbers, int c) {
    return device::load(reinterpret_cast<float2 const*>(numbers + 4 * c));
  }

  // Whether a warp has scores within `largest` alone, of which a mask cuts none.
  template <class Rows>
  CUTE_DEVICE bool are_small(Rows const& S, float largest, int m_block) const {
    return !mask.cuts(m_block) && !device::any_lane(!(largest_of(S) <= largest));
  }
  // Scores to their tanh, in place; those that do not count to kMaskedTanh.
  template <class Rows>
  CUTE_DEVICE static void to_tanh_of_small(Rows& S, TanhOfSmall const& of_small) {
    CUTE_UNROLL
    for (int i = 0; i < size(S); ++i) {
      S(i) = of_small(S(i));
    }
  }
  template <class Rows>
  CUTE_DEVICE void to_tanh(Rows& S, int m_block) const {
    CUTE_UNROLL
    for (int i = 0; i < size(S); ++i) {
      S(i) = pyflash::tanh(problem.softcap.inner * S(i));
    }
    if (mask.cuts(m_block)) {
      mask.apply(S, m_block, kMaskedTanh);
    }
  }

  // Calls put(c + r, tanh, P) for row r and columns c and c + 1, of their tanh.
  template <class Rows, class Put>
  CUTE_DEVICE void exponentiate(Rows const& tanh, float const* lse2, Put const& put) const {
    float const outer = problem.softcap.outer;
    CUTE_UNROLL
    for (int c = 0; c < size<1>(tanh); c += 2) {
      float2 const lse = numbers_at(lse2, c);
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        float2 const t{tanh(r, c), tanh(r, c + 1)};
        put(c + r, t,
            float2{device::exp2(fmaf(t.x, outer, -lse.x)), device::exp2(fmaf(t.y, outer, -lse.y))});
      }
    }
  }
  CUTE_DEVICE static float2 with_slopes(float2 P, float2 tanh) {
    return {P.x * fmaf(-tanh.x, tanh.x, 1.f), P.y * fmaf(-tanh.y, tanh.y, 1.f)};
  }

  // The largest magnitude. NOTE: NaN is none: it stays NaN either way.
  template <class Rows>
  CUTE_DEVICE static float largest_of(Rows const& S) {
    constexpr int kChains = 4;
    float largest[kChains] = {};
    CUTE_UNROLL
    for (int i = 0; i < size(S); ++i) {
      largest[i % kChains] = fmaxf(largest[i % kChains], fabsf(S(i)));
    }
    return fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3]));
  }

  template <class Rows>
  CUTE_DEVICE void add_slopes(Rows& S, int head, int m_block) const {
    if (problem.alibi_slopes.data == nullptr) {
      return;
    }
    auto const& tile = mask.tile;
    float const slope = load_slope<Element>(problem.alibi_slopes, problem.inverse_scale_log2,
                                            tile.sequence(), head);
    int const first_query =
        aligned_column(mask.first_query(m_block), tile.queries().length, tile.keys().length);
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      add_alibi(S, r, slope, mask.key(r) - first_query, column_of);
    }
  }
};

}  // namespace pyflash::sm90::backward
