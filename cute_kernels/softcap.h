// Softcap: scores become cap * tanh(score / cap).
#pragma once

#include <cmath>

#include <cute/tensor_impl.hpp>

#include "cute_kernels/device.h"

namespace pyflash {

// tanh(x) = sinh(x) / sqrt(1 + sinh(x)^2), sinh by an odd polynomial: what it is off by is divided by cosh(x)^2, and beyond
// 9 tanh is 1. The relative error is below 1.2e-6 for every x. A cap multiplies it, so that scores far below the cap must
// not cancel as in 1 - 2 / (exp(2x) + 1). Eleven instructions, one of them of the special-function unit.
CUTE_DEVICE float tanh(float x) {
  x = device::clamp(x, 9.f);
  float const x2 = x * x;
  float polynomial = 3.56743797e-6f;
  polynomial = polynomial * x2 + 1.91813946e-4f;
  polynomial = polynomial * x2 + 8.34991317e-3f;
  polynomial = polynomial * x2 + 1.66655779e-1f;
  polynomial = polynomial * x2 + 1.00000083f;
  float const sinh = x * polynomial;
  return sinh * device::rsqrt(sinh * sinh + 1.f);
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
