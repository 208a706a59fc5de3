// Integer arithmetic for the host and the device: standard C++, for nvcc, the emulator's compiler and the host's.
#pragma once

#include <type_traits>

#if defined(__CUDACC__)
#define PYFLASH_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define PYFLASH_HOST_DEVICE inline
#endif

namespace pyflash {

// a / b, rounded up. a >= 0, b > 0.
template <class A, class B>
PYFLASH_HOST_DEVICE constexpr std::common_type_t<A, B> ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

// NOTE: not min and max, which would hide those of CUDA and CuTe in every namespace below.
PYFLASH_HOST_DEVICE constexpr int smaller(int a, int b) { return a < b ? a : b; }
PYFLASH_HOST_DEVICE constexpr int larger(int a, int b) { return a < b ? b : a; }

// [begin, end): empty where end <= begin.
struct Interval {
  int begin;
  int end;

  PYFLASH_HOST_DEVICE constexpr int size() const { return larger(end - begin, 0); }

  // Without what lies below 0.
  PYFLASH_HOST_DEVICE constexpr Interval from_0() const {
    return {larger(begin, 0), larger(end, 0)};
  }

  // The blocks, from 0 on, of which it has a part, and those that it has all of.
  // NOTE: unsigned, so that a division by a power of two is a shift.
  PYFLASH_HOST_DEVICE constexpr Interval blocks_touched(unsigned block) const {
    return {int(unsigned(larger(begin, 0)) / block),
            int(ceil_div(unsigned(larger(end, 0)), block))};
  }
  PYFLASH_HOST_DEVICE constexpr Interval blocks_covered(unsigned block) const {
    return {int(ceil_div(unsigned(larger(begin, 0)), block)),
            int(unsigned(larger(end, 0)) / block)};
  }
};

}  // namespace pyflash
