// Four fp32 at a time: from 16-bit numbers, as any CPU can, and as a tensor core writes them.
#pragma once

#include <cstdint>

namespace pyflash::emulator {

inline constexpr int kWidth = 4;
using Words = uint32_t __attribute__((vector_size(16)));
using Floats = float __attribute__((vector_size(16)));

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
inline Floats canonical(Floats x) {
  return x == x ? x : reinterpret_cast<Floats>(Words{} + 0x7fffffffu);
}

}  // namespace pyflash::emulator
