// Softcap: scores become cap * tanh(score / cap).
#pragma once

#include <cmath>

#include <cute/tensor.hpp>

#include "cute_kernels/device.h"

namespace pyflash {

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
  for (int i = 0; i < cute::size(acc_S); ++i) {
    acc_S(i) *= scale;
    largest = fmaxf(largest, fabsf(acc_S(i)));
  }
  if (largest <= kSmallTanh) {
    CUTE_UNROLL
    for (int i = 0; i < cute::size(acc_S); ++i) {
      acc_S(i) = small_tanh(acc_S(i));
    }
  } else {
    CUTE_UNROLL
    for (int i = 0; i < cute::size(acc_S); ++i) {
      acc_S(i) = pyflash::tanh(acc_S(i));
    }
  }
}

}  // namespace pyflash
