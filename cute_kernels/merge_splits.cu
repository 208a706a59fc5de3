// Merges the partial results of a forward pass whose keys were split among CTAs:
//   lse = ln(sum_s exp(lse_s)),  O = sum_s exp(lse_s - lse) O_s
// One warp merges one row. Splits are summed in order, so that the result is the same every time.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "cute_kernels/kernel_library.h"

namespace pyflash {
namespace {

constexpr int kWarps = 4;
constexpr int kLanes = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kVector = 4;  // columns at a time

__device__ uint32_t pack2(float a, float b, __half) {
  __half2 const packed = __floats2half2_rn(a, b);
  return reinterpret_cast<uint32_t const&>(packed);
}
__device__ uint32_t pack2(float a, float b, __nv_bfloat16) {
  __nv_bfloat162 const packed = __floats2bfloat162_rn(a, b);
  return reinterpret_cast<uint32_t const&>(packed);
}

template <class Reduce>
__device__ float reduce_warp(float value, Reduce&& reduce) {
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    value = reduce(value, __shfl_xor_sync(kAllLanes, value, lanes));
  }
  return value;
}

// What the splits of a row weigh; a lane holds those of every 32nd split.
struct SplitWeights {
  static constexpr int kPerLane = kMaxSplits / kLanes;

  float weights[kPerLane];
  float lse;  // of the row: -inf where no split attended anything

  __device__ SplitWeights(ForwardParams const& params, int64_t row) {
    int const lane = threadIdx.x % kLanes;
    float row_max = -INFINITY;
    for (int i = 0; i < kPerLane; ++i) {
      int const split = lane + i * kLanes;
      bool const exists = split < params.num_splits;
      weights[i] = exists ? params.lse_partial[split * params.lse_strides.split + row] : -INFINITY;
      row_max = fmaxf(row_max, weights[i]);
    }
    row_max = reduce_warp(row_max, [](float a, float b) { return fmaxf(a, b); });
    float const shift = row_max == -INFINITY ? 0.f : row_max;  // so that -inf - shift is no NaN
    float sum = 0.f;
    for (float& weight : weights) {
      weight = __expf(weight - shift);
      sum += weight;
    }
    sum = reduce_warp(sum, [](float a, float b) { return a + b; });
    lse = row_max + __logf(sum);
    float const inverse = sum == 0.f ? 0.f : 1.f / sum;
    for (float& weight : weights) {
      weight *= inverse;
    }
  }
};

// Where the row lies in o: rows are numbered as the elements of lse, (batch, heads, seqlen), packed sequences being one.
__device__ int64_t offset_in_o(ForwardParams const& params, int64_t row) {
  int const seqlen = params.cu_seqlens_q ? params.total_q : params.seqlen_q;
  int64_t const head_and_batch = row / seqlen;
  return head_and_batch / params.heads * params.o_strides.batch +
         head_and_batch % params.heads * params.o_strides.head +
         row % seqlen * params.o_strides.row;
}

template <class Element>
__global__ void __launch_bounds__(kWarps* kLanes)
    merge_splits_kernel(__grid_constant__ ForwardParams const params) {
  int64_t const row = int64_t(blockIdx.x) * kWarps + threadIdx.x / kLanes;
  if (row >= params.lse_strides.split) {
    return;
  }
  int const lane = threadIdx.x % kLanes;
  SplitWeights const splits(params, row);
  if (lane == 0) {
    params.lse[row] = splits.lse;
  }
  int64_t const split_stride = params.lse_strides.split * params.d_head;
  float const* const partial = params.o_partial + row * params.d_head;
  Element* const o = static_cast<Element*>(params.o) + offset_in_o(params, row);
  // NOTE: every lane takes part in the shuffles, also those past the last column.
  for (int first = 0; first < params.d_head; first += kLanes * kVector) {
    int const column = first + lane * kVector;
    bool const exists = column < params.d_head;
    float4 sum{};
#pragma unroll
    for (int i = 0; i < SplitWeights::kPerLane; ++i) {
      int const n_splits = min(params.num_splits - i * kLanes, kLanes);
#pragma unroll 8
      for (int split = 0; split < n_splits; ++split) {
        float const weight = __shfl_sync(kAllLanes, splits.weights[i], split);
        float4 const values = exists ? *reinterpret_cast<float4 const*>(
                                           partial + (split + i * kLanes) * split_stride + column)
                                     : float4{};
        sum.x += weight * values.x;
        sum.y += weight * values.y;
        sum.z += weight * values.z;
        sum.w += weight * values.w;
      }
    }
    if (exists) {
      *reinterpret_cast<uint2*>(o + column) =
          uint2{pack2(sum.x, sum.y, Element{}), pack2(sum.z, sum.w, Element{})};
    }
  }
}

}  // namespace

int merge_splits(ForwardParams const& params, DType dtype, void* stream) {
  int64_t const n_ctas = (params.lse_strides.split + kWarps - 1) / kWarps;
  if (n_ctas > INT32_MAX) {
    return cudaErrorInvalidConfiguration;
  }
  auto const kernel =
      dtype == DType::FP16 ? merge_splits_kernel<__half> : merge_splits_kernel<__nv_bfloat16>;
  kernel<<<dim3(uint32_t(n_ctas)), dim3(kWarps * kLanes), 0, static_cast<cudaStream_t>(stream)>>>(
      params);
  return cudaGetLastError();
}

}  // namespace pyflash
