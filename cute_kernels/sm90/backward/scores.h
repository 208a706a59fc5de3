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
      return cap(P, operand, lse2, m_block);
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

  // dP^T - delta to dS^T, in place, from P^T as an operand.
  // S^T of capped scores to P^T as an operand, and the derivative by S^T but for the scale, 1 - tanh^2, as pairs of fp16.
  template <class Acc, class FragmentP, class Slopes, class Block>
  CUTE_DEVICE void to_P_and_slopes(Acc& acc, FragmentP& operand, Slopes& slopes, float const* lse2,
                                   Block const& block) const {
    device::at(Site::lse_s2r);
    Tensor P = rows_by_columns(acc);  // ((2,MMA_M),(2,V,MMA_N))
    to_tanh(P, block.m_block);
    float const outer = problem.softcap.outer;
    Tensor of_P = recast<uint32_t>(operand);
    Tensor of_slopes = recast<uint32_t>(slopes);
    CUTE_UNROLL
    for (int c = 0; c < size<1>(P); c += 2) {
      float2 const lse = numbers_at(lse2, c);
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        float const t0 = P(r, c), t1 = P(r, c + 1);
        of_P(c + r) = device::pack2(device::exp2(fmaf(t0, outer, -lse.x)),
                                    device::exp2(fmaf(t1, outer, -lse.y)), Element{});
        of_slopes(c + r) =
            device::pack2((1.f - t0) * (1.f + t0), (1.f - t1) * (1.f + t1), cutlass::half_t{});
      }
    }
    if (mask.cuts(block.m_block)) {
      // Of a score that does not count it is -inf: to 0.
      CUTE_UNROLL
      for (int i = 0; i < size(of_slopes); ++i) {
        of_slopes(i) &= ~((of_slopes(i) >> 15 & 0x00010001u) * 0xffffu);
      }
    }
  }
  template <class Slopes, class Acc>
  CUTE_DEVICE static void apply_slopes(Slopes const& slopes, Acc& acc_dS) {
    Tensor pairs = recast<uint32_t>(slopes);  // in the order of the accumulator
    CUTE_UNROLL
    for (int i = 0; i < size(pairs); ++i) {
      float2 const slope = device::unpack2(pairs(i), cutlass::half_t{});
      acc_dS(2 * i) *= slope.x;
      acc_dS(2 * i + 1) *= slope.y;
    }
  }

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

  template <class Rows, class FragmentP>
  CUTE_DEVICE void cap(Rows& P, FragmentP& operand, float const* lse2, int m_block) const {
    to_tanh(P, m_block);
    float const outer = problem.softcap.outer;
    Tensor pairs = recast<uint32_t>(operand);
    CUTE_UNROLL
    for (int c = 0; c < size<1>(P); c += 2) {
      float2 const lse = numbers_at(lse2, c);
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        float const p0 = device::exp2(fmaf(P(r, c), outer, -lse.x));
        float const p1 = device::exp2(fmaf(P(r, c + 1), outer, -lse.y));
        pairs(c + r) = device::pack2(p0, p1, Element{});
        P(r, c) = p0 * (1.f - P(r, c)) * (1.f + P(r, c));
        P(r, c + 1) = p1 * (1.f - P(r, c + 1)) * (1.f + P(r, c + 1));
      }
    }
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
