// What emitted variants compute with, for the host and the device. pyflash/variant/arithmetic.py has the same operations:
// integers wrap, // and % round down and are 0 where the divisor is, min and max are NaN where an operand is.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cute_kernels/common/integers.h"

namespace pyflash::variant {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The lengths of a sequence, and the position of the first query and key of a part of it.
struct Lengths {
  int q_len;
  int k_len;
  int q0;
  int k0;
};

// What a score function makes of a score, and its derivative by it.
struct ScoreAndSlope {
  float score;
  float slope;
};

template <class T>
PYFLASH_HOST_DEVICE constexpr T wrapping_add(T a, T b) {
  using U = std::make_unsigned_t<T>;
  return T(U(a) + U(b));
}
template <class T>
PYFLASH_HOST_DEVICE constexpr T wrapping_sub(T a, T b) {
  using U = std::make_unsigned_t<T>;
  return T(U(a) - U(b));
}
template <class T>
PYFLASH_HOST_DEVICE constexpr T wrapping_mul(T a, T b) {
  using U = std::make_unsigned_t<T>;
  return T(U(a) * U(b));
}

PYFLASH_HOST_DEVICE constexpr bool both(bool a, bool b) { return (a & b) != 0; }
PYFLASH_HOST_DEVICE constexpr bool either(bool a, bool b) { return (a | b) != 0; }

template <class T>
PYFLASH_HOST_DEVICE constexpr T absolute(T a) {
  return a < 0 ? wrapping_sub(T(0), a) : a;
}
PYFLASH_HOST_DEVICE float absolute(float a) { return std::fabs(a); }

template <class T>
PYFLASH_HOST_DEVICE constexpr T floor_mod(T a, T b) {
  if (b == 0 || b == -1) {  // the least integer by -1 overflows
    return 0;
  }
  T const rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
template <class T>
PYFLASH_HOST_DEVICE constexpr T floor_div(T a, T b) {
  if (b == 0 || b == -1) {
    return b == 0 ? 0 : wrapping_sub(T(0), a);
  }
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

template <class T>
PYFLASH_HOST_DEVICE constexpr T shift_left(T a, T n) {
  using U = std::make_unsigned_t<T>;
  return n >= 0 && n < T(8 * sizeof(T)) ? T(U(a) << n) : T(0);
}
template <class T>
PYFLASH_HOST_DEVICE constexpr T shift_right(T a, T n) {
  return n >= 0 && n < T(8 * sizeof(T)) ? a >> n : (a < 0 ? T(-1) : T(0));
}

template <class T>
PYFLASH_HOST_DEVICE constexpr T minimum(T a, T b) {
  return a != a || (a < b && b == b) ? a : b;
}
template <class T>
PYFLASH_HOST_DEVICE constexpr T maximum(T a, T b) {
  return a != a || (a > b && b == b) ? a : b;
}
template <class T>
PYFLASH_HOST_DEVICE constexpr T clamp(T a, T low, T high) {
  return minimum(maximum(a, low), high);
}

// Cut towards 0, saturated, 0 for NaN.
template <class T>
PYFLASH_HOST_DEVICE constexpr T to_integer(float a) {
  constexpr float end = -float(std::numeric_limits<T>::min());
  if (a != a) {
    return 0;
  }
  if (a >= end) {
    return std::numeric_limits<T>::max();
  }
  return a <= -end ? std::numeric_limits<T>::min() : T(a);
}

PYFLASH_HOST_DEVICE uint32_t bits_of(float a) {
  uint32_t bits;
  __builtin_memcpy(&bits, &a, sizeof(bits));
  return bits;
}
PYFLASH_HOST_DEVICE float float_of(uint32_t bits) {
  float a;
  __builtin_memcpy(&a, &bits, sizeof(a));
  return a;
}

// Takes 0 <= a < 2^23; exact. A conversion takes the GPU four times as long.
PYFLASH_HOST_DEVICE float float_of_position(int a) {
  return float_of(0x4b000000u + uint32_t(a)) - 0x1p23f;
}

// The nearest number of a shorter type, ties to even.
PYFLASH_HOST_DEVICE float rounded_to_bf16(float a) {
  uint32_t const bits = bits_of(a);
  return a != a || std::fabs(a) == kInfinity
             ? a
             : float_of((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
}
PYFLASH_HOST_DEVICE float rounded_to_f16(float a) {
  float const size = std::fabs(a);
  if (!(size < 65520.f)) {
    return a != a ? a : std::copysign(kInfinity, a);
  }
  // Adding and subtracting a power of two rounds to a multiple of the distance of its neighbours, or of 2^-24.
  uint32_t const exponent = bits_of(size < 0x1p-14f ? 0x1p-14f : size) & 0x7f800000u;
  float const power = float_of(exponent + (13u << 23));
  float const volatile sum = size + power;  // that no compiler takes apart
  return std::copysign(sum - power, a);
}

// Numbers of captured tensors that C++ has no type for.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

template <class T>
PYFLASH_HOST_DEVICE constexpr T number(T a) {
  return a;
}
PYFLASH_HOST_DEVICE float number(BFloat16 a) { return float_of(uint32_t(a.bits) << 16); }
PYFLASH_HOST_DEVICE float number(Half a) {
#if defined(__CUDA_ARCH__)
  float exact;
  asm("cvt.f32.f16 %0, %1;" : "=f"(exact) : "h"(a.bits));
  return exact;
#else
  uint32_t const sign = uint32_t(a.bits & 0x8000u) << 16;
  uint32_t const rest = uint32_t(a.bits & 0x7fffu) << 13;
  if (rest >= 0x7c00u << 13) {  // infinite or NaN
    return float_of(sign | 0x7f800000u | (rest & 0x7fffffu));
  }
  float const size = float_of(rest) * 0x1p112f;
  return sign != 0 ? -size : size;
#endif
}

// On the device as the special-function unit has them, to a few of the last digits.
#if defined(__CUDA_ARCH__)
__device__ __forceinline__ float exp(float a) { return __expf(a); }
__device__ __forceinline__ float exp2(float a) { return exp2f(a); }
__device__ __forceinline__ float log(float a) { return __logf(a); }
__device__ __forceinline__ float log2(float a) { return __log2f(a); }
__device__ __forceinline__ float divided(float a, float b) { return __fdividef(a, b); }
__device__ __forceinline__ float inverse(float a) { return __fdividef(1.f, a); }
// by: the inverse of b, computed once for many a.
__device__ __forceinline__ float divided(float a, float, float by) { return a * by; }
// NaN where a is.
__device__ __forceinline__ float clamped(float a, float most) {
#if __CUDA_ARCH__ >= 800
  float low, high;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(low) : "f"(a), "f"(most));
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(high) : "f"(low), "f"(-most));
  return high;
#else
  return a > most ? most : a < -most ? -most : a;
#endif
}
// Takes a normal number, without the scaling that others take.
__device__ __forceinline__ float rsqrt_of_normal(float a) {
  float root;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(a));
  return root;
}
// tanh(x) = sinh(x) / sqrt(1 + sinh(x)^2), as in cute_kernels/softcap.h; NaN stays NaN.
__device__ __forceinline__ float tanh(float a) {
  float const x = clamped(a, 9.f);
  float const x2 = x * x;
  float polynomial = 3.56743797e-6f;
  polynomial = polynomial * x2 + 1.91813946e-4f;
  polynomial = polynomial * x2 + 8.34991317e-3f;
  polynomial = polynomial * x2 + 1.66655779e-1f;
  polynomial = polynomial * x2 + 1.00000083f;
  float const sinh = x * polynomial;
  return sinh * rsqrt_of_normal(sinh * sinh + 1.f);
}
__device__ __forceinline__ float sigmoid(float a) { return __fdividef(1.f, 1.f + __expf(-a)); }
#else
inline float exp(float a) { return std::exp(a); }
inline float exp2(float a) { return std::exp2(a); }
inline float log(float a) { return std::log(a); }
inline float log2(float a) { return std::log2(a); }
inline float divided(float a, float b) { return a / b; }
inline float inverse(float a) { return 1.f / a; }
inline float divided(float a, float b, float) { return a / b; }
inline float tanh(float a) { return std::tanh(a); }
inline float sigmoid(float a) { return 1.f / (1.f + std::exp(-a)); }
#endif
// Rounded once.
PYFLASH_HOST_DEVICE float fused(float a, float b, float c) { return std::fma(a, b, c); }
PYFLASH_HOST_DEVICE float sin(float a) { return std::sin(a); }
PYFLASH_HOST_DEVICE float cos(float a) { return std::cos(a); }
PYFLASH_HOST_DEVICE float erf(float a) { return std::erf(a); }
PYFLASH_HOST_DEVICE float sqrt(float a) { return std::sqrt(a); }
PYFLASH_HOST_DEVICE float rsqrt(float a) { return 1.f / std::sqrt(a); }
PYFLASH_HOST_DEVICE float floor(float a) { return std::floor(a); }

}  // namespace pyflash::variant
