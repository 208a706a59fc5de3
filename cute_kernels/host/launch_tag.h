// Numbers of launches.
#pragma once

#include <atomic>
#include <cstdint>
#include <random>

namespace pyflash {

// A number that no other launch of the process has, and, but for one chance in 2^64, no memory of 64 bits that was not written for
// this launch. Not 0.
inline uint64_t new_launch_tag() {
  static uint64_t const first = [] {
    std::random_device random;
    return uint64_t(random()) << 32 | random();
  }();
  static std::atomic<uint64_t> n_launches{0};
  uint64_t tag = 0;
  while (tag == 0) {
    // The finaliser of splitmix64, one to one, so that numbers do not follow each other as addresses and counters do.
    tag = first + 0x9e3779b97f4a7c15 * ++n_launches;
    tag = (tag ^ (tag >> 30)) * 0xbf58476d1ce4e5b9;
    tag = (tag ^ (tag >> 27)) * 0x94d049bb133111eb;
    tag ^= tag >> 31;
  }
  return tag;
}

}  // namespace pyflash
