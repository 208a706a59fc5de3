// wgmma.mma_async as the warps of a warpgroup see it. Each warp computes 16 of the 64 rows, when it has to wait for them
// and not a moment sooner: until then the accumulators are NaN, and operands are read where they lie.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "cute_kernels/emulator/machine.h"
#include "cute_kernels/emulator/traffic.h"

namespace pyflash::emulator {

inline constexpr int kMmaRows = 16;  // of a warp
inline constexpr int kMmaDepth = 16;
inline constexpr int kChunkBytes = 16;

// Whether two threads give the same operands, as far as these are not of each thread.
bool same_instruction(WarpgroupMma const& a, WarpgroupMma const& b);

// A matrix operand in shared memory: what the 64 bits of a descriptor say.
struct Descriptor {
  uint32_t start;           // address
  uint32_t leading_offset;  // bytes
  uint32_t stride_offset;
  int row_bytes;    // of the swizzle's pattern: 16 (none), 32, 64, 128
  int base_offset;  // of the pattern

  explicit Descriptor(uint64_t bits);

  // The address of 8 elements. K-major: those of row i, and of 8 * j and on along k. MN-major: those of rows 8 * i and on,
  // and of j along k.
  uint32_t chunk(bool mn_major, int i, int j) const;
};

// The accumulators of a warp while MMAs in flight write to them.
struct Accumulator {
  std::array<float*, kLanes> registers;
  int n;
  int n_in_flight = 0;
  std::vector<float> values;  // (kMmaRows, n)
};

struct MmaInFlight {
  WarpgroupMma mma;  // of lane 0
  std::array<uint32_t const*, kLanes> a;
  std::shared_ptr<Accumulator> accumulator;
  int site;
  uint32_t number;  // of the warp's, from 1
};

struct WarpMmas {
  std::deque<MmaInFlight> in_flight;  // oldest first
  std::deque<size_t> groups;          // sizes of those committed, oldest first
  size_t n_uncommitted = 0;
  uint32_t n_issued = 0;
};

// The bytes at an address of shared memory: 16 of them, or nullptr where there are none.
using ReadChunk = std::function<std::byte const*(uint32_t address)>;

// Puts the registers of a warp's lanes into the accumulator, and NaN in their place.
void take_registers(Accumulator& accumulator);
void give_registers(Accumulator const& accumulator);

// Adds the product to the accumulator; `warp` of the warpgroup, from 0.
void multiply(MmaInFlight const& mma, int warp, ReadChunk const& read);

}  // namespace pyflash::emulator
