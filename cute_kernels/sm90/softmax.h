// Online softmax over the blocks of S = QK^T (Milakov and Gimelshein 2018; FlashAttention, algorithm 1). A thread holds two
// rows' worth of state; the four lanes of a quad share a row.
#pragma once

#include <cmath>

#include <cute/tensor.hpp>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/row_softmax.h"
#include "cute_kernels/sm90/gemm.h"
#include "cute_kernels/softcap.h"

namespace pyflash::sm90 {

using namespace cute;

// The maximum that exponents refer to need not be the rows' own: where kRescaleThreshold, it stays while the rows' maximum
// exceeds it by no more than 2^kThreshold, and O is not rescaled. The final division by l makes up for it.
template <bool kRescaleThreshold, bool kSoftcap>
struct Softmax {
  static constexpr int kRows = 2;
  static constexpr float kThreshold = kRescaleThreshold ? 8.f : 0.f;
  using PerRow = Tensor<ArrayEngine<float, kRows>, Layout<Int<kRows>>>;

  float softmax_scale;
  PerRow row_max;       // of S, or a little less
  PerRow max_exponent;  // what it is as an exponent of 2, where there is a cap
  PerRow row_sum;       // this thread's share of l

  CUTE_DEVICE explicit Softmax(float softmax_scale) : softmax_scale(softmax_scale) {}

  // The state before any block.
  CUTE_DEVICE void reset() {
    fill(row_max, float{kLeastMax});
    clear(max_exponent);
    clear(row_sum);
  }

  // Row r does not exist: no score of it exceeds its m, so that it has no part in what rows decide together.
  CUTE_DEVICE void leave_out(int r) { row_max(r) = INFINITY; }

  // Turns a block of scores into P and brings m and l up to date with it. kFirst: nothing came before; where
  // kSoftcap, m is as `reset` and `leave_out` left it. Returns whether O is to be rescaled, and if so, writes by what.
  template <bool kFirst, class AccS>
  CUTE_DEVICE bool update(AccS& acc_S, PerRow& correction, Softcap const& softcap) {
    Tensor S = rows_by_columns(acc_S);  // ((2,MMA_M),(2,V,MMA_N))
    constexpr int kColumns = decltype(size<1>(S))::value;
    float const scale_log2 = softmax_scale * kLog2e;
    bool const is_capped = kSoftcap && softcap.cap != 0.f;

    PerRow block_max;  // over this thread's columns, or the quad's
    bool grows = false;
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      float odd = S(r, 1);
      block_max(r) = S(r, 0);
      CUTE_UNROLL
      for (int c = 2; c < kColumns; c += 2) {
        block_max(r) = fmaxf(block_max(r), S(r, c));
        odd = fmaxf(odd, S(r, c + 1));
      }
      block_max(r) = fmaxf(block_max(r), odd);
      grows |= !kFirst && (block_max(r) - row_max(r)) * scale_log2 > kThreshold;
    }
    // Lanes need not agree on the maximum where all of them stay below the threshold.
    bool const rescale = !kFirst && device::any_lane(grows);
    if (kFirst || rescale) {
      CUTE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        block_max(r) = reduce_quad(block_max(r), [](float a, float b) { return fmaxf(a, b); });
        float const new_max = fmaxf(block_max(r), kFirst && !kSoftcap ? kLeastMax : row_max(r));
        float const new_exponent = is_capped ? capped_exponent(softcap, new_max) : 0.f;
        if constexpr (kFirst) {
          row_sum(r) = 0.f;
        } else {
          correction(r) = device::exp2(is_capped ? max_exponent(r) - new_exponent
                                                 : (row_max(r) - new_max) * scale_log2);
          row_sum(r) *= correction(r);
        }
        row_max(r) = new_max;
        max_exponent(r) = new_exponent;
      }
    }
    if (is_capped) {
      bool small = true;
      CUTE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        small &= row_max(r) == INFINITY || scores_are_small(softcap, row_max(r), block_max(r));
      }
      if (small) {
        exponentiate(S, max_exponent, [&](float score) { return capped_slope(softcap, score); });
      } else {
        cap_scores(softcap, S);
        exponentiate(S, max_exponent, [](float) { return 1.f; });
      }
    } else {
      PerRow exponent;
      CUTE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        exponent(r) = row_max(r) * scale_log2;
      }
      exponentiate(S, exponent, [&](float) { return scale_log2; });
    }
    return rescale;
  }

  // S(r, c) to 2^(slope(S(r, c)) * S(r, c) - m(r)), and their sums to l.
  template <class Scores, class Slope>
  CUTE_DEVICE void exponentiate(Scores& S, PerRow const& m, Slope const& slope) {
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      float sum[2] = {0.f, 0.f};
      CUTE_UNROLL
      for (int c = 0; c < size<1>(S); ++c) {
        S(r, c) = device::exp2(fmaf(S(r, c), slope(S(r, c)), -m(r)));
        sum[c % 2] += S(r, c);
      }
      row_sum(r) += sum[0] + sum[1];
    }
  }

  template <class AccO>
  CUTE_DEVICE static void rescale(AccO& acc_O, PerRow const& factor) {
    Tensor O = rows_by_columns(acc_O);  // ((2,MMA_M),(2,V,MMA_K))
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      CUTE_UNROLL
      for (int c = 0; c < size<1>(O); ++c) {
        O(r, c) *= factor(r);
      }
    }
  }

  // O /= l; returns the rows' lse = m + ln(l). A row that attended nothing gets O = 0, lse = -inf. sinks: per row, a logit
  // that enters l alone, or -inf.
  template <class AccO>
  CUTE_DEVICE PerRow finalise(AccO& acc_O, PerRow const& sinks, Softcap const& softcap) const {
    PerRow lse, inverse;
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      float sum = reduce_quad(row_sum(r), [](float a, float b) { return a + b; });
      float maximum =
          kSoftcap && softcap.cap != 0.f ? max_exponent(r) / kLog2e : row_max(r) * softmax_scale;
      float shrink = 1.f;  // of the terms of sum, when the sink becomes the maximum
      if (sinks(r) != -INFINITY) {
        float const new_max = fmaxf(maximum, sinks(r));
        shrink = device::exp2((maximum - new_max) * kLog2e);
        sum = sum * shrink + device::exp2((sinks(r) - new_max) * kLog2e);
        maximum = new_max;
      }
      inverse(r) = sum == 0.f ? 0.f : shrink / sum;
      lse(r) = sum == 0.f ? -INFINITY : maximum + device::log(sum);
    }
    rescale(acc_O, inverse);
    return lse;
  }
};

}  // namespace pyflash::sm90
