// What kernels that merge partial results of a forward pass share.
#pragma once

#include <cmath>
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cute_kernels/params.h"

namespace pyflash {

constexpr int kVector = 4;  // columns at a time

// Threads along a row, of kVector columns each.
__host__ __device__ constexpr int columns_of(int d_head) {
  return d_head <= 64 ? 16 : d_head <= 128 ? 32 : 64;
}

inline __device__ uint32_t pack2(float a, float b, __half) {
  __half2 const packed = __floats2half2_rn(a, b);
  return reinterpret_cast<uint32_t const&>(packed);
}
inline __device__ uint32_t pack2(float a, float b, __nv_bfloat16) {
  __nv_bfloat162 const packed = __floats2bfloat162_rn(a, b);
  return reinterpret_cast<uint32_t const&>(packed);
}

inline __device__ void add(float4& sum, float weight, float4 const& values) {
  sum.x = fmaf(weight, values.x, sum.x);
  sum.y = fmaf(weight, values.y, sum.y);
  sum.z = fmaf(weight, values.z, sum.z);
  sum.w = fmaf(weight, values.w, sum.w);
}

// A row of o; packed sequences are one.
struct RowCoord {
  int64_t batch;
  int64_t head;
  int64_t row;
};

template <class Params>
__device__ int64_t offset_in_o(Params const& params, RowCoord const& coord) {
  return coord.batch * params.o_strides.batch + coord.head * params.o_strides.head +
         coord.row * params.o_strides.row;
}

// -inf where there is none.
template <class Element, class Params>
__device__ float load_sink(Params const& params, RowCoord const& coord) {
  if (params.sinks.data == nullptr) {
    return -INFINITY;
  }
  TensorStrides const& strides = params.sinks.strides;
  int64_t const offset = coord.head * strides.head + coord.row * strides.row;
  return params.sinks.is_fp32 ? static_cast<float const*>(params.sinks.data)[offset]
                              : float(static_cast<Element const*>(params.sinks.data)[offset]);
}

}  // namespace pyflash
