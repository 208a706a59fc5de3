// Tensor maps of TMA over rows of 16-bit elements, on the host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <cuda.h>

#include "cute_kernels/config.h"
#include "cute_kernels/sm90/shape.h"

namespace pyflash::sm90 {

// cuTensorMapEncodeTiled, or what stands for it.
using TensorMapEncoder = decltype(&cuTensorMapEncodeTiled);

struct MapDimension {
  int64_t extent;
  int64_t stride;  // elements
  int box;
};

// Why TMA cannot load from a tensor, whose base and strides are multiples of 16 bytes; nullptr: it can.
template <size_t kRank>
char const* refusal_of_map(std::array<MapDimension, kRank> const& dimensions) {
  constexpr int64_t kMaxStride = (int64_t(1) << 40) / kElementBytes;
  for (MapDimension const& dimension : dimensions) {
    if (dimension.extent > 1 && dimension.stride == 0) {
      return "q, k or v has a stride of 0, as expanded tensors have, and TMA needs strides above 0";
    }
    if (dimension.extent > 1 && dimension.stride >= kMaxStride) {
      return "q, k or v has a stride of 2^40 bytes or more, and TMA needs less";
    }
  }
  return nullptr;
}

// What the maps of a kernel have in common.
struct MapForm {
  DType dtype;
  int slab;  // columns of a box: 64, 32 or 16
  CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
};

// A tensor map over rows of `columns` contiguous elements, in boxes of a slab of columns; what of a box lies outside reads as 0.
template <size_t kRank>
bool encode_tensor_map(TensorMapEncoder encoder, CUtensorMap& map, void const* base,
                       MapForm const& form, int columns,
                       std::array<MapDimension, kRank> const& dimensions) {
  cuuint64_t extents[kRank + 1] = {cuuint64_t(columns)};
  cuuint64_t strides[kRank];
  cuuint32_t box[kRank + 1] = {cuuint32_t(form.slab)};
  cuuint32_t element_strides[kRank + 1] = {1};
  for (size_t i = 0; i < kRank; ++i) {
    extents[i + 1] = dimensions[i].extent;
    // NOTE: the stride of an extent of 1 may be anything, but the encoder looks at it.
    strides[i] = dimensions[i].extent == 1 ? 16 : dimensions[i].stride * kElementBytes;
    box[i + 1] = dimensions[i].box;
    element_strides[i + 1] = 1;
  }
  auto const swizzle = form.slab == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                       : form.slab == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                         : CU_TENSOR_MAP_SWIZZLE_32B;
  auto const type = form.dtype == DType::FP16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                              : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return encoder(&map, type, kRank + 1, const_cast<void*>(base), extents, strides, box,
                 element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, form.promotion,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace pyflash::sm90
