// Four fp32 at a time: from 16-bit numbers, as any CPU can, and as a tensor core writes them. Eight where a CPU can add so
// many.
#pragma once

#include <cstdint>
#include <cstring>

namespace pyflash::emulator {

inline constexpr int kWidth = 4;
using Words = uint32_t __attribute__((vector_size(16)));
using Floats = float __attribute__((vector_size(16)));
using FourHalves = uint16_t __attribute__((vector_size(8)));

// Of a function with WideFloats: a second one for CPUs with AVX. Its sums are the same, since no product is fused into one.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define PYFLASH_WIDE __attribute__((target_clones("avx", "default")))
#else
#define PYFLASH_WIDE
#endif
inline constexpr int kWideWidth = 8;
inline constexpr int kWideRows = 8;
using WideWords = uint32_t __attribute__((vector_size(32)));
using WideFloats = float __attribute__((vector_size(32)));

inline Floats from_fp16(Words half) {
  constexpr uint32_t kExponent = 0x7c00u << 13;
  constexpr uint32_t kRebias = (127 - 15) << 23;
  constexpr uint32_t kLeadingOne = 1u << 23;
  constexpr float kSmallestNormal = 0x1p-14f;
  Words const magnitude = (half & 0x7fffu) << 13;
  Words const exponent = magnitude & kExponent;
  // A subnormal is read as if it had a leading 1, which is then taken away.
  Floats const subnormal =
      reinterpret_cast<Floats>(magnitude + kRebias + kLeadingOne) - kSmallestNormal;
  Words const normal = magnitude + kRebias + (exponent == kExponent ? Words{} + kRebias : Words{});
  Words const bits = exponent == 0u ? reinterpret_cast<Words>(subnormal) : normal;
  return reinterpret_cast<Floats>(bits | (half & 0x8000u) << 16);
}

inline Floats from_bf16(Words bfloat) { return reinterpret_cast<Floats>(bfloat << 16); }

// NaN as a tensor core writes it: all bits of it but the sign. A CPU's has the sign, and would be below all numbers as bits.
inline __attribute__((always_inline)) void make_canonical(WideFloats& x) {
  x = x == x ? x : reinterpret_cast<WideFloats>(WideWords{} + 0x7fffffffu);
}

// D += A B of kWideRows rows and kWideWidth columns, in fp32, k ascending; no sum waits for its last addition. A is (k, row), B
// is (k, column), D (row, column); the leading dimensions are given.
inline __attribute__((always_inline)) void add_wide_products(float const* A, int lda,
                                                             float const* B, int ldb, int depth,
                                                             float* D, int ldd) {
  WideFloats sums[kWideRows];
#pragma GCC unroll 8
  for (int i = 0; i < kWideRows; ++i) {
    std::memcpy(&sums[i], D + i * ldd, sizeof sums[i]);
  }
  for (int k = 0; k < depth; ++k) {
    WideFloats b;
    std::memcpy(&b, B + k * ldb, sizeof b);
#pragma GCC unroll 8
    for (int i = 0; i < kWideRows; ++i) {
      sums[i] += A[k * lda + i] * b;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kWideRows; ++i) {
    make_canonical(sums[i]);
    std::memcpy(D + i * ldd, &sums[i], sizeof sums[i]);
  }
}

}  // namespace pyflash::emulator
