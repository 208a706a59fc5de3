// The 16-bit types of q, k, v and o on the CPU. Conversions to them round to nearest, ties to even. They are bit
// arithmetic without branches, which compilers vectorise.
#pragma once

#include <bit>
#include <cstdint>

namespace pyflash {

struct Float16 {
  uint16_t bits;

  Float16() = default;
  explicit Float16(float value) {
    constexpr uint32_t kInfinity = 0x7c00, kNaN = 0x7e00, kRebias = (127 - 15) << 10;
    constexpr uint32_t kMinNormal = (127 - 14) << 23;  // of float16, as float32
    uint32_t const all = std::bit_cast<uint32_t>(value);
    uint32_t const magnitude = all & 0x7fffffff;
    uint32_t const rounded = (magnitude + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    uint32_t const normal = rounded - kRebias < kInfinity ? rounded - kRebias : kInfinity;
    // The spacing of floats from 0.5 on is that of subnormal float16: the sum rounds as they do.
    float const sum = std::bit_cast<float>(magnitude) + 0.5f;
    uint32_t const subnormal = std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5f);
    uint32_t const finite = magnitude < kMinNormal ? subnormal : normal;
    bits = static_cast<uint16_t>((value != value ? kNaN : finite) | (all >> 16 & 0x8000));
  }

  explicit operator float() const {
    constexpr uint32_t kRebias = (127 - 15) << 23;
    uint32_t const magnitude = bits & 0x7fff;
    uint32_t const normal = (magnitude << 13) + kRebias;
    uint32_t const special = normal + kRebias;  // exponent 31 becomes 255: infinity and NaN
    float const sum = std::bit_cast<float>(std::bit_cast<uint32_t>(0.5f) + magnitude);
    uint32_t const subnormal = std::bit_cast<uint32_t>(sum - 0.5f);
    uint32_t const value = magnitude < 0x400 ? subnormal : (magnitude < 0x7c00 ? normal : special);
    return std::bit_cast<float>(value | uint32_t(bits & 0x8000) << 16);
  }
};

struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  explicit BFloat16(float value) {
    constexpr uint32_t kNaN = 0x7fc0;
    uint32_t const all = std::bit_cast<uint32_t>(value);
    uint32_t const rounded = (all + 0x7fff + (all >> 16 & 1)) >> 16;
    bits = static_cast<uint16_t>(value != value ? kNaN : rounded);
  }

  explicit operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};

// An element of a cache in e4m3.
struct Float8E4M3 {
  uint8_t bits;

  explicit operator float() const {
    constexpr uint32_t kNaN = 0x7f, kRebias = (127 - 7) << 3;
    uint32_t const magnitude = bits & 0x7f;
    float const subnormal = static_cast<float>(magnitude) / 512;
    uint32_t const value = magnitude == kNaN ? 0x7fc00000
                           : magnitude < 8   ? std::bit_cast<uint32_t>(subnormal)
                                             : (magnitude + kRebias) << 20;
    return std::bit_cast<float>(value | uint32_t(bits & 0x80) << 24);
  }
};

}  // namespace pyflash
