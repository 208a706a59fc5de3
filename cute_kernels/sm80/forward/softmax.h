// Online softmax over the blocks of S = QK^T (Milakov and Gimelshein 2018; FlashAttention, algorithm 1). A thread holds
// kRows rows' worth of state; the four lanes of a quad share a row.
#pragma once

#include <cmath>

#include <cute/tensor_impl.hpp>

#include "cute_kernels/device.h"
#include "cute_kernels/row_softmax.h"
#include "cute_kernels/sm80/gemm.h"
#include "cute_kernels/softcap.h"

namespace pyflash::sm80 {

using namespace cute;

// kOptimized folds log2(e) into the scale, so that an element costs one FFMA and one ex2, and takes the maximum over
// unscaled scores. Otherwise S is scaled first and the exponential is to the natural base.
//
// The maximum that exponents refer to need not be the rows' own: where kRescaleThreshold, it stays while the rows' maximum
// exceeds it by no more than 2^kThreshold, and O is not rescaled. The final division by l makes up for it.
//
// Where there may be a cap, exponents are of 2 and take the place of scores before any is raised to one, whatever kOptimized is.
template <class Element, int kRows, bool kOptimized, bool kRescaleThreshold, bool kSoftcap>
struct Softmax {
  static constexpr float kThreshold = kRescaleThreshold ? kMaxGrowth<Element> : 0.f;
  static constexpr bool kScalesFirst = !kOptimized && !kSoftcap;

  float softmax_scale;
  float inverse_scale_log2;
  Softcap const& softcap;
  cute::array<float, kRows> limit;  // scores up to it leave m as it is; scaled where kScalesFirst
  cute::array<float, kRows> max_exponent;  // m, where there is a cap
  cute::array<float, kRows> row_sum;       // this thread's share of l
  bool has_two_terms = true;               // under a cap, two terms of the series did so far

  CUTE_DEVICE Softmax(float softmax_scale, float inverse_scale_log2, Softcap const& softcap)
      : softmax_scale(softmax_scale), inverse_scale_log2(inverse_scale_log2), softcap(softcap) {
    if constexpr (!kOptimized) {
      reset();
    }
  }

  // The state before any block.
  CUTE_DEVICE void reset() {
    cute::fill(limit, float{kLeastMax});
    cute::fill(max_exponent, capped_max(kLeastMax));
    cute::clear(row_sum);
  }

  // m: scaled where kScalesFirst, else an exponent of 2.
  CUTE_DEVICE float m(int r) const {
    return kScalesFirst  ? limit[r]
           : is_capped() ? max_exponent[r]
                         : fmaf(limit[r], scale_log2(), -kThreshold);
  }

  // Begins a block of scores: brings m up to date with it, and l and O to the new m. kFirst: nothing came before, so nothing
  // is rescaled and the state is written, not updated. kMasked: some scores are -inf.
  template <bool kFirst, bool kMasked, class AccS, class AccO>
  CUTE_DEVICE void begin(AccS& acc_S, AccO& acc_O) {
    Tensor S = rows_by_columns(acc_S);  // ((2,MMA_M),(2,MMA_N))
    if constexpr (kScalesFirst) {
      CUTE_UNROLL
      for (int i = 0; i < size(acc_S); ++i) {
        acc_S(i) *= softmax_scale;
      }
    }
    if constexpr (kMayLeaveScores<kFirst, kMasked>) {
      if (leaves_scores()) {
        has_two_terms = !device::any_lane(is_large(S));
        if (has_two_terms) {
          return;
        }
      }
    }
    cute::array<float, kRows> block_max;  // over this thread's columns
    bool grows = false;
    bool small = true;  // the scores, under a cap
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      block_max[r] = S(r, 0);
      CUTE_UNROLL
      for (int c = 1; c < size<1>(S); ++c) {
        block_max[r] = fmaxf(block_max[r], S(r, c));
      }
      grows |= !kFirst && block_max[r] > limit[r];
      small &= block_max[r] <= softcap.largest;
    }
    // Lanes need not agree on the maximum where none exceeds its limit.
    if (kFirst || !kRescaleThreshold || device::any_lane(grows)) {
      update_max<kFirst>(block_max, acc_O);
    }
    if constexpr (kSoftcap) {
      to_exponents(S, small);
    }
  }

  template <bool kFirst, class AccO>
  CUTE_DEVICE void update_max(cute::array<float, kRows> const& block_max, AccO& acc_O) {
    Tensor O = rows_by_columns(acc_O);  // ((2,MMA_M),(2,MMA_K))
    float const growth = kThreshold * inverse_scale_log2;
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      float const quad_max =
          reduce_quad(block_max[r], [](float a, float b) { return fmaxf(a, b); });
      float const old_m = m(r);
      limit[r] = fmaxf(quad_max + growth, kFirst ? kLeastMax : limit[r]);
      max_exponent[r] = capped_max(limit[r] - growth);
      if constexpr (kFirst) {
        row_sum[r] = 0.f;
      } else {
        float const difference = old_m - m(r);
        float const correction = kScalesFirst ? device::exp(difference) : device::exp2(difference);
        row_sum[r] *= correction;
        CUTE_UNROLL
        for (int c = 0; c < size<1>(O); ++c) {
          O(r, c) *= correction;
        }
      }
    }
  }

  // Whether m may have to grow, or two terms of the series do not do.
  template <class Scores>
  CUTE_DEVICE bool is_large(Scores const& S) const {
    bool large = false;
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      float magnitude = fabsf(S(r, 0));
      CUTE_UNROLL
      for (int c = 1; c < size<1>(S); ++c) {
        magnitude = fmaxf(magnitude, fabsf(S(r, c)));
      }
      large |= magnitude > fminf(limit[r], softcap.largest_of_two);
    }
    return large;
  }

  // Scores to exponents of 2, less m. small: none of this block is large.
  template <class Scores>
  CUTE_DEVICE void to_exponents(Scores& S, bool small) const {
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      small &= max_exponent[r] >= softcap.least_exponent;
    }
    if (!is_capped()) {
      for_each_exponent(S, [&](float score, float m) { return score * scale_log2() - m; });
    } else if (small) {
      for_each_exponent(
          S, [&](float score, float m) { return score * capped_slope(softcap, score) - m; });
    } else {
      cap_scores(softcap, S);
      for_each_exponent(S, [&](float exponent, float m) { return exponent - m; });
    }
  }

  // exponent: of a score and its row's m.
  template <class Scores, class Exponent>
  CUTE_DEVICE void for_each_exponent(Scores& S, Exponent const& exponent) const {
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      float const offset = m(r);
      CUTE_UNROLL
      for (int c = 0; c < size<1>(S); ++c) {
        S(r, c) = exponent(S(r, c), offset);
      }
    }
  }

  // Turns the columns of S that are step k of PV, two tiles of 8, into P, and adds them to l.
  template <bool kTwoTerms, class AccS>
  CUTE_DEVICE void exponentiate(AccS& acc_S, int k) {
    Tensor S = rows_by_columns(acc_S);  // ((2,MMA_M),(2,MMA_N))
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      float const offset = m(r);
      CUTE_UNROLL
      for (int c = 4 * k; c < 4 * (k + 1); ++c) {
        S(r, c) = kScalesFirst ? device::exp(S(r, c) - offset)
                  : kTwoTerms
                      ? device::exp2(S(r, c) * capped_slope_of_two(softcap, S(r, c)) - offset)
                  : kSoftcap ? device::exp2(S(r, c))
                             : device::exp2(S(r, c) * scale_log2() - offset);
        row_sum[r] += S(r, c);
      }
    }
  }

  // Whether `begin` left scores that `exponentiate` is to take to exponents by two terms of the series; it may where
  // kMayLeaveScores.
  CUTE_DEVICE bool leaves_scores() const { return is_capped() && has_two_terms; }
  template <bool kFirst, bool kMasked>
  static constexpr bool kMayLeaveScores = kSoftcap && kRescaleThreshold && !kFirst && !kMasked;

  CUTE_DEVICE bool is_capped() const { return kSoftcap && softcap.cap != 0.f; }
  // m under a cap, of the largest score; 0 where there is no cap.
  CUTE_DEVICE float capped_max(float score) const {
    return is_capped() ? capped_exponent(softcap, score) : 0.f;
  }
  CUTE_DEVICE float scale_log2() const { return softmax_scale * kLog2e; }

  // O /= l; returns the rows' lse = m + ln(l). A row that attended nothing gets O = 0, lse = -inf.
  // kSameBits: as every kernel with the same config does.
  template <bool kSameBits, class AccO>
  CUTE_DEVICE auto finalise(AccO& acc_O) {
    Tensor O = rows_by_columns(acc_O);  // ((2,MMA_M),(2,MMA_K))
    cute::array<float, kRows> lse;
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      float const sum = reduce_quad(row_sum[r], [](float a, float b) { return a + b; });
      float const inverse = sum == 0.f ? 0.f : 1.f / sum;
      float const scaled_max = kScalesFirst ? m(r)
                               : kSameBits  ? device::rounded_product(m(r), kLn2)
                                            : m(r) * kLn2;
      float const log_sum = device::log(sum);
      lse[r] = sum == 0.f  ? -INFINITY
               : kSameBits ? device::rounded_sum(scaled_max, log_sum)
                           : scaled_max + log_sum;
      CUTE_UNROLL
      for (int c = 0; c < size<1>(O); ++c) {
        O(r, c) *= inverse;
      }
    }
    return lse;
  }
};

// Joins a sink to each row, one more score whose value is 0, given O and lse without it; -inf is no sink.
template <class AccO, class Lse, class SinkOf>
CUTE_DEVICE void join_sinks(AccO& acc_O, Lse& lse, SinkOf&& sink_of) {
  Tensor O = rows_by_columns(acc_O);  // ((2,MMA_M),(2,MMA_K))
  CUTE_UNROLL
  for (int r = 0; r < lse.size(); ++r) {
    float const sink = sink_of(r);
    if (sink == -INFINITY) {
      continue;
    }
    float const larger = fmaxf(lse[r], sink);
    float const weight = device::exp(lse[r] - larger);
    float const sum = weight + device::exp(sink - larger);
    lse[r] = larger + device::log(sum);
    float const correction = weight / sum;
    CUTE_UNROLL
    for (int c = 0; c < size<1>(O); ++c) {
      O(r, c) *= correction;
    }
  }
}

}  // namespace pyflash::sm80
