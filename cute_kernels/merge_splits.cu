// Merges the partial results of a forward pass whose keys were split among CTAs:
//   lse = ln(sum_s exp(lse_s) + exp(sink)),  O = sum_s exp(lse_s - lse) O_s
// where a head without a sink has one of -inf.
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

// Rows are numbered as the elements of lse, (batch, heads, seqlen), packed sequences being one.
struct RowCoord {
  int64_t batch;
  int64_t head;
  int64_t row;

  __device__ RowCoord(ForwardParams const& params, int64_t n) {
    int const seqlen = params.cu_seqlens_q ? params.total_q : params.seqlen_q;
    int64_t const head_and_batch = n / seqlen;
    batch = head_and_batch / params.heads;
    head = head_and_batch % params.heads;
    row = n % seqlen;
  }
};

__device__ int64_t offset_in_o(ForwardParams const& params, RowCoord const& coord) {
  return coord.batch * params.o_strides.batch + coord.head * params.o_strides.head +
         coord.row * params.o_strides.row;
}

// -inf where there is none.
template <class Element>
__device__ float load_sink(ForwardParams const& params, RowCoord const& coord) {
  if (params.sinks == nullptr) {
    return -INFINITY;
  }
  int64_t const offset =
      coord.head * params.sink_strides.head + coord.row * params.sink_strides.row;
  return params.sinks_are_fp32 ? static_cast<float const*>(params.sinks)[offset]
                               : float(static_cast<Element const*>(params.sinks)[offset]);
}

// What the splits of a row weigh; a lane holds those of every 32nd split.
struct SplitWeights {
  static constexpr int kPerLane = kMaxSplits / kLanes;

  float weights[kPerLane];
  float lse;  // of the row: -inf where no split attended anything and there is no sink

  __device__ SplitWeights(ForwardParams const& params, int64_t row, float sink) {
    int const lane = threadIdx.x % kLanes;
    float row_max = sink;
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
    sum = reduce_warp(sum, [](float a, float b) { return a + b; }) + __expf(sink - shift);
    lse = row_max + __logf(sum);
    float const inverse = sum == 0.f ? 0.f : 1.f / sum;
    for (float& weight : weights) {
      weight *= inverse;
    }
  }
};

template <class Element>
__global__ void __launch_bounds__(kWarps* kLanes)
    merge_splits_kernel(__grid_constant__ ForwardParams const params) {
  int64_t const row = int64_t(blockIdx.x) * kWarps + threadIdx.x / kLanes;
  if (row >= params.lse_strides.split) {
    return;
  }
  int const lane = threadIdx.x % kLanes;
  RowCoord const coord(params, row);
  SplitWeights const splits(params, row, load_sink<Element>(params, coord));
  if (lane == 0) {
    params.lse[row] = splits.lse;
  }
  int64_t const split_stride = params.lse_strides.split * params.d_head;
  float const* const partial = params.o_partial + row * params.d_head;
  Element* const o = static_cast<Element*>(params.o) + offset_in_o(params, coord);
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
