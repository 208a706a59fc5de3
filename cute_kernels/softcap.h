// Softcap: scores become cap * tanh(score / cap).
#pragma once

#include <cmath>

#include "cute_kernels/device.h"
#include "cute_kernels/params.h"

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

CUTE_DEVICE float capped_exponent(Softcap const& softcap, float score) {
  return softcap.outer * pyflash::tanh(softcap.inner * score);
}

// The exponent over the score, by three terms and by two.
CUTE_DEVICE float capped_slope(Softcap const& softcap, float score) {
  float const square = score * score;
  return (softcap.quadratic * square + softcap.linear) * square + softcap.constant;
}
CUTE_DEVICE float capped_slope_of_two(Softcap const& softcap, float score) {
  return softcap.linear_of_two * (score * score) + softcap.constant_of_two;
}

// tanh(inner * score) by three terms of the series, as accurate as tanh is where |score| is at most `largest`.
struct TanhOfSmall {
  float largest;
  float constant, linear, quadratic;

  CUTE_DEVICE explicit TanhOfSmall(Softcap const& softcap) {
    constexpr float kLeast = 1e-37f, kMost = 1e37f;
    float const magnitude = fabsf(softcap.quadratic);
    // NOTE: where a term underflows, no score is small.
    largest = kLeast < magnitude && magnitude < kMost ? softcap.largest : -1.f;
    // Terms are those of exponents.
    float const over = device::reciprocal(softcap.outer);
    constant = softcap.constant * over;
    linear = softcap.linear * over;
    quadratic = softcap.quadratic * over;
  }

  CUTE_DEVICE float operator()(float score) const {
    float const square = score * score;
    return score * ((quadratic * square + linear) * square + constant);
  }
};

// To exponents, whatever the scores are. Masked ones stay -inf.
template <class Scores>
CUTE_DEVICE void cap_scores(Softcap const& softcap, Scores& scores) {
  CUTE_UNROLL
  for (int i = 0; i < cute::size(scores); ++i) {
    float const exponent = capped_exponent(softcap, scores(i));
    scores(i) = scores(i) == -INFINITY ? -INFINITY : exponent;
  }
}

}  // namespace pyflash
