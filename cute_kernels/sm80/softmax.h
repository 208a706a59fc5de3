// Online softmax over the blocks of S = QK^T (Milakov and Gimelshein 2018; FlashAttention, algorithm 1). A thread holds
// kRows rows' worth of state; the four lanes of a quad share a row.
#pragma once

#include <cmath>

#include <cute/tensor.hpp>

#include "cute_kernels/device.h"
#include "cute_kernels/sm80/gemm.h"

namespace pyflash::sm80 {

using namespace cute;

inline constexpr float kLog2e = 1.44269504088896340736f;

template <class Reduce>
CUTE_DEVICE float reduce_quad(float value, Reduce&& reduce) {
  value = reduce(value, device::shfl_xor(value, 2));
  return reduce(value, device::shfl_xor(value, 1));
}

// tanh(x) as x P(x^2) / Q(x^2), a minimax fit on [-7.9, 7.9]; beyond it tanh is 1 within 2.7e-7. With fp32 arithmetic the
// relative error is below 6e-7 for every x: a cap multiplies it, so small x, which are scores far below the cap, must not
// cancel as in 1 - 2 / (exp(2x) + 1). Twelve instructions, one of them of the special-function unit.
CUTE_DEVICE float tanh(float x) {
  x = device::clamp(x, 7.9f);
  float const x2 = x * x;
  float const p =
      ((1.15319690e-5f * x2 + 2.96048657e-3f) * x2 + 1.29344299e-1f) * x2 + 9.99999881e-1f;
  float const q =
      (((2.49258733e-7f * x2 + 2.40013833e-4f) * x2 + 2.38541383e-2f) * x2 + 4.62676585e-1f) * x2 +
      1.f;
  return x * p * device::reciprocal(q);
}

// tanh(x) as x P(x^2), a minimax fit with a relative error below 1e-7 for |x| <= kSmallTanh.
inline constexpr float kSmallTanh = 0.4f;
CUTE_DEVICE float small_tanh(float x) {
  float const x2 = x * x;
  return x *
         (((-4.75536030e-2f * x2 + 1.32709768e-1f) * x2 - 3.33313625e-1f) * x2 + 9.99999902e-1f);
}

// tanh(scale * S): scores that a cap is left to multiply. Scores are mostly far below a cap, so that a thread whose scores
// all are takes the cheaper fit.
template <class AccS>
CUTE_DEVICE void cap_scores(AccS& acc_S, float scale) {
  float largest = 0.f;
  CUTE_UNROLL
  for (int i = 0; i < size(acc_S); ++i) {
    acc_S(i) *= scale;
    largest = fmaxf(largest, fabsf(acc_S(i)));
  }
  if (largest <= kSmallTanh) {
    CUTE_UNROLL
    for (int i = 0; i < size(acc_S); ++i) {
      acc_S(i) = small_tanh(acc_S(i));
    }
  } else {
    CUTE_UNROLL
    for (int i = 0; i < size(acc_S); ++i) {
      acc_S(i) = sm80::tanh(acc_S(i));
    }
  }
}

// kOptimized folds log2(e) into the scale, so that an element costs one FFMA and one ex2, and takes the maximum over
// unscaled scores. Otherwise S is scaled first and the exponential is to the natural base.
template <int kRows, bool kOptimized>
struct Softmax {
  float softmax_scale;
  Tensor<ArrayEngine<float, kRows>, Layout<Int<kRows>>> row_max;  // of S; scaled unless kOptimized
  Tensor<ArrayEngine<float, kRows>, Layout<Int<kRows>>> row_sum;  // this thread's share of l

  CUTE_DEVICE explicit Softmax(float softmax_scale) : softmax_scale(softmax_scale) {
    if constexpr (!kOptimized) {
      reset();
    }
  }

  // The state before any block.
  CUTE_DEVICE void reset() {
    fill(row_max, -INFINITY);
    clear(row_sum);
  }

  // Turns a block of scores into P and brings m, l and O up to date with it. kFirst: nothing came before, so nothing is
  // rescaled and the state is written, not updated. kMasked: a row may have attended nothing so far.
  template <bool kFirst, bool kMasked, class AccS, class AccO>
  CUTE_DEVICE void update(AccS& acc_S, AccO& acc_O) {
    Tensor S = rows_by_columns(acc_S);  // ((2,MMA_M),(2,MMA_N))
    Tensor O = rows_by_columns(acc_O);  // ((2,MMA_M),(2,MMA_K))
    float const scale_log2 = softmax_scale * kLog2e;
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if constexpr (!kOptimized) {
        CUTE_UNROLL
        for (int c = 0; c < size<1>(S); ++c) {
          S(r, c) *= softmax_scale;
        }
      }
      float block_max = S(r, 0);
      CUTE_UNROLL
      for (int c = 1; c < size<1>(S); ++c) {
        block_max = fmaxf(block_max, S(r, c));
      }
      block_max = reduce_quad(block_max, [](float a, float b) { return fmaxf(a, b); });
      float const new_max = kFirst ? block_max : fmaxf(row_max(r), block_max);
      // Where all scores are -inf, 0 makes the exponentials 0 instead of NaN.
      float const shift = kMasked && new_max == -INFINITY ? 0.f : new_max;
      if constexpr (!kFirst) {
        float const correction = kOptimized ? device::exp2((row_max(r) - shift) * scale_log2)
                                            : device::exp(row_max(r) - shift);
        row_sum(r) *= correction;
        CUTE_UNROLL
        for (int c = 0; c < size<1>(O); ++c) {
          O(r, c) *= correction;
        }
      }
      row_max(r) = new_max;
      float block_sum = 0.f;
      float const offset = shift * scale_log2;
      CUTE_UNROLL
      for (int c = 0; c < size<1>(S); ++c) {
        S(r, c) =
            kOptimized ? device::exp2(S(r, c) * scale_log2 - offset) : device::exp(S(r, c) - shift);
        block_sum += S(r, c);
      }
      row_sum(r) = kFirst ? block_sum : row_sum(r) + block_sum;
    }
  }

  // O /= l; returns the rows' lse = m + ln(l). A row that attended nothing gets O = 0, lse = -inf.
  template <class AccO>
  CUTE_DEVICE auto finalise(AccO& acc_O) {
    Tensor O = rows_by_columns(acc_O);  // ((2,MMA_M),(2,MMA_K))
    Tensor lse = make_fragment_like(row_sum);
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      float const sum = reduce_quad(row_sum(r), [](float a, float b) { return a + b; });
      float const inverse = sum == 0.f ? 0.f : 1.f / sum;
      float const scaled_max = kOptimized ? row_max(r) * softmax_scale : row_max(r);
      lse(r) = sum == 0.f ? -INFINITY : scaled_max + device::log(sum);
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
  for (int r = 0; r < size(lse); ++r) {
    float const sink = sink_of(r);
    if (sink == -INFINITY) {
      continue;
    }
    float const larger = fmaxf(lse(r), sink);
    float const weight = device::exp(lse(r) - larger);
    float const sum = weight + device::exp(sink - larger);
    lse(r) = larger + device::log(sum);
    float const correction = weight / sum;
    CUTE_UNROLL
    for (int c = 0; c < size<1>(O); ++c) {
      O(r, c) *= correction;
    }
  }
}

}  // namespace pyflash::sm80
