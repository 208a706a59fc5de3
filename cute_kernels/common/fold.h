// Results of the splits of a row's keys, each with the O and lse of its keys alone, folded one after the other, the last keys first:
//   lse = ln(sum_s exp(lse_s) + exp(sink)),  O = sum_s exp(lse_s - lse) O_s
// Bits depend on the parts that attend something, and on their order. What attends nothing changes none, and a part that is alone
// keeps its own. So it does not matter which kernel folds, nor how many parts without a key there are.
#pragma once

#include <cmath>

#include "cute_kernels/common/integers.h"

namespace pyflash {

// Math: exp, log, fma(a, b, c), product, each rounded by itself.
template <class Math>
struct Fold {
  float largest = -INFINITY;  // of lse so far
  float sum = 0;              // of exp(lse - largest)

  // Factors of a part's O and of the O of the parts before it.
  struct Weights {
    float before;
    float part;

    // A column of O. What has no weight may be infinite or NaN; -0 in its place changes no bit of the sum, nor a zero's sign.
    PYFLASH_HOST_DEVICE float of(float value_before, float value) const {
      float const counted_before = before == 0 && part != 0 ? -0.f : value_before;
      float const counted = part == 0 ? -0.f : value;
      return Math::fma(counted, part, Math::product(counted_before, before));
    }
  };

  PYFLASH_HOST_DEVICE Weights add(float lse) {
    float const maximum = fmaxf(largest, lse);
    float const shift = maximum == -INFINITY ? 0.f : maximum;  // so that -inf - shift is no NaN
    Weights const weights{.before = Math::exp(largest - shift), .part = Math::exp(lse - shift)};
    sum = Math::fma(sum, weights.before, weights.part);
    largest = maximum;
    return weights;
  }

  // Adds a logit to the sum alone, or -inf for none; returns the factor that divides O by the sum.
  PYFLASH_HOST_DEVICE float finish(float sink) {
    Weights const weights = sink == -INFINITY ? Weights{.before = 1, .part = 0} : add(sink);
    return sum == 0 ? 0.f : Math::product(weights.before, 1.f / sum);
  }
  PYFLASH_HOST_DEVICE float lse() const {
    return sum == 0 ? -INFINITY : sum == 1 ? largest : largest + Math::log(sum);
  }
};

}  // namespace pyflash
