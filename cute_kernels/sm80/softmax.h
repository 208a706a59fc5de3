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
// Where there may be a cap, the maximum is over unscaled scores and exponents are of 2, whatever kOptimized is.
template <int kRows, bool kOptimized, bool kRescaleThreshold, bool kSoftcap>
struct Softmax {
  static constexpr float kThreshold = 8.f;
  static constexpr bool kScalesFirst = !kOptimized && !kSoftcap;

  float softmax_scale;
  Softcap const& softcap;
  cute::array<float, kRows> row_max;       // of S, or a little less; scaled where kScalesFirst
  cute::array<float, kRows> max_exponent;  // what it is as an exponent of 2, where there is a cap
  cute::array<float, kRows> row_sum;       // this thread's share of l

  CUTE_DEVICE explicit Softmax(ForwardParams const& params)
      : softmax_scale(params.softmax_scale), softcap(params.softcap) {
    if constexpr (!kOptimized) {
      reset();
    }
  }

  // The state before any block.
  CUTE_DEVICE void reset() {
    cute::fill(row_max, float{kLeastMax});
    cute::fill(max_exponent, exponent(kLeastMax));
    cute::clear(row_sum);
  }

  // Begins a block of scores: brings m up to date with it, and l and O to the new m. kFirst: nothing came before, so nothing
  // is rescaled and the state is written, not updated.
  template <bool kFirst, class AccS, class AccO>
  CUTE_DEVICE void begin(AccS& acc_S, AccO& acc_O) {
    cute::array<float, kRows> block_max;  // over this thread's columns, or the quad's
    update_max<kFirst>(acc_S, acc_O, block_max);
    if (is_capped()) {
      cap(acc_S, block_max);
    }
  }

  template <bool kFirst, class AccS, class AccO>
  CUTE_DEVICE void update_max(AccS& acc_S, AccO& acc_O, cute::array<float, kRows>& block_max) {
    Tensor S = rows_by_columns(acc_S);  // ((2,MMA_M),(2,MMA_N))
    Tensor O = rows_by_columns(acc_O);  // ((2,MMA_M),(2,MMA_K))
    bool grows = !kRescaleThreshold;
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (kScalesFirst) {
        CUTE_UNROLL
        for (int c = 0; c < size<1>(S); ++c) {
          S(r, c) *= softmax_scale;
        }
      }
      block_max[r] = S(r, 0);
      CUTE_UNROLL
      for (int c = 1; c < size<1>(S); ++c) {
        block_max[r] = fmaxf(block_max[r], S(r, c));
      }
      if constexpr (!kFirst && kRescaleThreshold) {
        grows |= (block_max[r] - row_max[r]) * scale_log2() > kThreshold;
      }
    }
    // Lanes need not agree on the maximum where all of them stay below the threshold.
    if (!kFirst && kRescaleThreshold && !device::any_lane(grows)) {
      return;
    }
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      block_max[r] = reduce_quad(block_max[r], [](float a, float b) { return fmaxf(a, b); });
      float const new_max = fmaxf(block_max[r], kFirst ? kLeastMax : row_max[r]);
      float const new_exponent = exponent(new_max);
      if constexpr (kFirst) {
        row_sum[r] = 0.f;
      } else {
        float const correction = is_capped() ? device::exp2(max_exponent[r] - new_exponent)
                                 : kScalesFirst
                                     ? device::exp(row_max[r] - new_max)
                                     : device::exp2((row_max[r] - new_max) * scale_log2());
        row_sum[r] *= correction;
        CUTE_UNROLL
        for (int c = 0; c < size<1>(O); ++c) {
          O(r, c) *= correction;
        }
      }
      row_max[r] = new_max;
      max_exponent[r] = new_exponent;
    }
  }

  template <class AccS>
  CUTE_DEVICE void cap(AccS& acc_S, cute::array<float, kRows> const& block_max) const {
    bool small = true;
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      small &= scores_are_small(softcap, row_max[r], block_max[r]);
    }
    if (small) {
      CUTE_UNROLL
      for (int i = 0; i < size(acc_S); ++i) {
        acc_S(i) *= capped_slope(softcap, acc_S(i));
      }
    } else {
      cap_scores(softcap, acc_S);
    }
  }

  // Turns the columns of S that are step k of PV, two tiles of 8, into P, and adds them to l.
  template <class AccS>
  CUTE_DEVICE void exponentiate(AccS& acc_S, int k) {
    Tensor S = rows_by_columns(acc_S);  // ((2,MMA_M),(2,MMA_N))
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      float const factor = is_capped() ? 1.f : scale_log2();
      float const offset = is_capped() ? max_exponent[r] : row_max[r] * scale_log2();
      CUTE_UNROLL
      for (int c = 4 * k; c < 4 * (k + 1); ++c) {
        S(r, c) = kScalesFirst ? device::exp(S(r, c) - row_max[r])
                               : device::exp2(S(r, c) * factor - offset);
        row_sum[r] += S(r, c);
      }
    }
  }

  CUTE_DEVICE bool is_capped() const { return kSoftcap && softcap.cap != 0.f; }
  // Of 2, for a raw score; 0 where there is no cap.
  CUTE_DEVICE float exponent(float score) const {
    return is_capped() ? capped_exponent(softcap, score) : 0.f;
  }
  CUTE_DEVICE float scale_log2() const { return softmax_scale * kLog2e; }

  // O /= l; returns the rows' lse = m + ln(l). A row that attended nothing gets O = 0, lse = -inf.
  template <class AccO>
  CUTE_DEVICE auto finalise(AccO& acc_O) {
    Tensor O = rows_by_columns(acc_O);  // ((2,MMA_M),(2,MMA_K))
    cute::array<float, kRows> lse;
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      float const sum = reduce_quad(row_sum[r], [](float a, float b) { return a + b; });
      float const inverse = sum == 0.f ? 0.f : 1.f / sum;
      float const scaled_max = is_capped()    ? max_exponent[r] / kLog2e
                               : kScalesFirst ? row_max[r]
                                              : row_max[r] * softmax_scale;
      lse[r] = sum == 0.f ? -INFINITY : scaled_max + device::log(sum);
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
