#include "cute_kernels/emulator/tensor_map.h"

#include <cstring>

namespace pyflash::emulator {

namespace {

constexpr uint64_t kMagic = 0x70616d726f736e74;
constexpr uint32_t kMaxBox = 256;
constexpr uint64_t kMaxExtent = uint64_t{1} << 32;
constexpr uint64_t kMaxStride = uint64_t{1} << 40;
constexpr uint64_t kAlignment = 16;

int row_bytes(CUtensorMapSwizzle swizzle) {
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_NONE:
      return 16;
    case CU_TENSOR_MAP_SWIZZLE_32B:
      return 32;
    case CU_TENSOR_MAP_SWIZZLE_64B:
      return 64;
    case CU_TENSOR_MAP_SWIZZLE_128B:
      return 128;
    default:
      return 0;
  }
}

}  // namespace

CUresult encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* base,
                           cuuint64_t const* extents, cuuint64_t const* strides,
                           cuuint32_t const* box, cuuint32_t const* element_strides,
                           CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  constexpr int kElementBytes = 2;
  int const swizzle_bytes = row_bytes(swizzle);
  if ((type != CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16) ||
      interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE ||
      swizzle_bytes == 0) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  uint64_t const inner_bytes = uint64_t{box[0]} * kElementBytes;
  bool valid = rank >= 1 && rank <= kMaxMapRank && base != nullptr &&
               reinterpret_cast<uintptr_t>(base) % kAlignment == 0 &&
               inner_bytes % kAlignment == 0 &&
               (swizzle_bytes == 16 || inner_bytes <= uint64_t(swizzle_bytes));
  for (cuuint32_t i = 0; valid && i < rank; ++i) {
    valid = extents[i] >= 1 && extents[i] <= kMaxExtent && box[i] >= 1 && box[i] <= kMaxBox &&
            element_strides[i] == 1;
    if (valid && i > 0) {
      valid = strides[i - 1] % kAlignment == 0 && strides[i - 1] > 0 && strides[i - 1] < kMaxStride;
    }
  }
  if (!valid) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  MapDescription description{.magic = kMagic,
                             .base = reinterpret_cast<uintptr_t>(base),
                             .rank = rank,
                             .element_bytes = kElementBytes,
                             .swizzle_bytes = static_cast<uint16_t>(swizzle_bytes)};
  for (cuuint32_t i = 0; i < rank; ++i) {
    description.extents[i] = static_cast<uint32_t>(extents[i]);
    description.box[i] = static_cast<uint16_t>(box[i]);
    if (i > 0) {
      description.strides[i - 1] = strides[i - 1];
    }
  }
  std::memset(map, 0, sizeof *map);
  std::memcpy(map, &description, sizeof description);
  return CUDA_SUCCESS;
}

MapDescription const* description_of(void const* map) {
  auto const* const description = static_cast<MapDescription const*>(map);
  return description->magic == kMagic ? description : nullptr;
}

}  // namespace pyflash::emulator
