// wgmma.mma_async as the warps of a warpgroup see it. Each warp computes 16 of the 64 rows, when it has to wait for them
// and not a moment sooner: until then the accumulators are NaN, and operands are read where they lie.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "cute_kernels/emulator/machine.h"
#include "cute_kernels/emulator/tensor_map.h"
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
  int chunk_bits;   // of the number of a chunk in a row of the swizzle's pattern: 0 (none) to 3
  int base_offset;  // of the pattern

  explicit Descriptor(uint64_t bits);

  // The address of 8 elements. K-major: those of row i, and of 8 * j and on along k. MN-major: those of rows 8 * i and on,
  // and of j along k.
  uint32_t chunk(bool mn_major, uint32_t i, uint32_t j) const {
    uint32_t const in_row = (1u << chunk_bits) - 1;
    uint32_t const row_bytes = kChunkBytes << chunk_bits;
    uint32_t address = start;
    if (!mn_major) {
      uint32_t const along_k = chunk_bits == 0 ? leading_offset : kChunkBytes;
      address += i % 8 * row_bytes + i / 8 * stride_offset + j * along_k;
    } else if (chunk_bits == 0) {
      address += j % 8 * row_bytes + i * stride_offset + j / 8 * leading_offset;
    } else {
      address += (i & in_row) * kChunkBytes + (i >> chunk_bits) * leading_offset +
                 j % 8 * row_bytes + j / 8 * stride_offset;
    }
    // The chunks of a row are permuted by the number of the row, which is in the address.
    return address ^ ((address >> 7) - base_offset & in_row) << 4;
  }
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

// The shared memory of a CTA.
struct SharedBytes {
  std::byte const* data;
  int64_t size;

  // The 16 bytes at an address, or nullptr where there are none.
  std::byte const* chunk(uint32_t address) const {
    int64_t const offset = int64_t{address} - kSharedBase;
    return offset >= 0 && offset + kChunkBytes <= size ? data + offset : nullptr;
  }
};

// Puts the registers of a warp's lanes into the accumulator, and NaN in their place.
void take_registers(Accumulator& accumulator);
void give_registers(Accumulator const& accumulator);

// Adds the product to the accumulator; `warp` of the warpgroup, from 0.
void multiply(MmaInFlight const& mma, int warp, SharedBytes const& shared);

}  // namespace pyflash::emulator
