// What the softmax of every family starts from, over rows of an MMA's accumulator.
#pragma once

#include <type_traits>

#include "cute_kernels/device.h"

namespace pyflash {

inline constexpr float kLog2e = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.693147180559945309417f;

// What m starts at. Scores of -inf, masked or by value, are as far below it as below any other m: the exponentials of a row
// that has no others are 0, where from -inf they would be NaN.
inline constexpr float kLeastMax = -1e30f;

// Where rescale_threshold: by how much exponents of 2 may exceed m, so that P, of type Element, stays finite.
template <class Element>
inline constexpr float kMaxGrowth = std::is_same_v<Element, cutlass::half_t> ? 14.f : 24.f;

// Over the four lanes that share a row.
template <class Reduce>
CUTE_DEVICE float reduce_quad(float value, Reduce&& reduce) {
  value = reduce(value, device::shfl_xor(value, 2));
  return reduce(value, device::shfl_xor(value, 1));
}

}  // namespace pyflash
