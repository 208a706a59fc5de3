// Sizes that all SM90 kernels share.
#pragma once

namespace pyflash::sm90 {

inline constexpr int kWarpgroup = 128;        // threads
inline constexpr int kMmaM = 64;              // rows of a warpgroup's MMA atom, and of a warpgroup
inline constexpr int kWarpRows = 16;          // of these, a warp's
inline constexpr int kMmaK = 16;              // of 16-bit elements
inline constexpr int kSmemAlignment = 1024;   // of a tile under the 128-byte swizzle
inline constexpr int kElementBytes = 2;       // of Q, K, V and O
inline constexpr int kMostSmem = 227 * 1024;  // of a CTA

}  // namespace pyflash::sm90
