// Vector clocks: what a warp knows to have happened before now. A warp counts epochs; each signal to others ends one. A
// warp that waits for the signal knows all that the signalling warp did before it, and all that it knew.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace pyflash::emulator {

inline constexpr int kMaxWarps = 128;  // of a cluster, as are the mbarriers
inline constexpr int kMaxMbarriers = 512;

struct Clock {
  std::array<uint32_t, kMaxWarps> warps{};   // epochs that have ended
  std::array<uint32_t, kMaxWarps> fenced{};  // of these, those before a fence of the async proxy
  std::array<uint32_t, kMaxWarps> mmas{};    // of each warp, warpgroup MMAs that are complete
  std::array<uint32_t, kMaxWarps> stores{};  // and stores of TMA that have read shared memory
  std::array<uint32_t, kMaxMbarriers> phases{};  // of each mbarrier, phases that are complete

  void join(Clock const& other) {
    join(warps, other.warps);
    join(fenced, other.fenced);
    join(mmas, other.mmas);
    join(stores, other.stores);
    join(phases, other.phases);
  }

 private:
  template <size_t kSize>
  static void join(std::array<uint32_t, kSize>& into, std::array<uint32_t, kSize> const& from) {
    for (size_t i = 0; i < kSize; ++i) {
      into[i] = std::max(into[i], from[i]);
    }
  }
};

}  // namespace pyflash::emulator
