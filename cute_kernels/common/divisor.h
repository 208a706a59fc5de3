// A divisor that the host knows before a kernel runs: the kernel multiplies and shifts where it would divide.
#pragma once

#include <cstdint>

#include "cute_kernels/common/integers.h"

namespace pyflash {

struct Divisor {
  int32_t divisor = 1;
  uint32_t multiplier = 0;
  uint32_t shift = 0;

  constexpr Divisor() = default;
  // divisor: positive.
  // NOTE: 2^(shift + 1) is the least power of two that is not below the divisor: the multiplier has 32 bits, and quotients of
  // dividends below 2^31 are exact.
  constexpr explicit Divisor(int divisor) : divisor(divisor) {
    if (divisor == 1) {
      return;
    }
    while ((uint64_t(1) << (shift + 1)) < uint64_t(divisor)) {
      ++shift;
    }
    uint64_t const power = uint64_t(1) << (32 + shift);
    multiplier = uint32_t((power + uint64_t(divisor) - 1) / uint64_t(divisor));
  }

  // dividend: not negative.
  PYFLASH_HOST_DEVICE int div(int dividend) const {
#if defined(__CUDA_ARCH__)
    return divisor != 1 ? __umulhi(dividend, multiplier) >> shift : dividend;
#else
    return divisor != 1 ? int(uint64_t(dividend) * multiplier >> 32) >> shift : dividend;
#endif
  }
  PYFLASH_HOST_DEVICE void operator()(int& quotient, int& remainder, int dividend) const {
    quotient = div(dividend);
    remainder = dividend - quotient * divisor;
  }
};

}  // namespace pyflash
