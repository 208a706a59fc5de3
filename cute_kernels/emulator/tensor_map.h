// Tensor maps of TMA: what the driver would encode, kept in the map's own bytes.
#pragma once

#include <cstdint>

#include <cuda.h>

namespace pyflash::emulator {

inline constexpr int kMaxMapRank = 5;

// What a map holds. Dimensions innermost first; the innermost is contiguous.
struct MapDescription {
  uint64_t magic;
  uint64_t base;
  uint32_t rank;
  uint32_t element_bytes;
  uint32_t extents[kMaxMapRank];
  uint16_t box[kMaxMapRank];
  uint16_t swizzle_bytes;             // a row of the pattern: 16 (none), 32, 64, 128
  uint64_t strides[kMaxMapRank - 1];  // bytes, of dimensions 1 and up
};
static_assert(sizeof(MapDescription) <= sizeof(CUtensorMap));

// In place of cuTensorMapEncodeTiled, with the restrictions that it checks; for elements of 2 bytes that are not
// interleaved, what lies outside read as 0.
CUresult encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* base,
                           cuuint64_t const* extents, cuuint64_t const* strides,
                           cuuint32_t const* box, cuuint32_t const* element_strides,
                           CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                           CUtensorMapL2promotion l2_promotion, CUtensorMapFloatOOBfill fill);

// Where dynamic shared memory begins in the shared window of a CTA: what the system keeps lies before it.
inline constexpr int kSharedBase = 1024;

// nullptr: nothing was encoded there.
MapDescription const* description_of(void const* map);

}  // namespace pyflash::emulator
