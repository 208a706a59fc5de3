// Merges the partial results of a forward pass whose keys were split among CTAs:
//   lse = ln(sum_s exp(lse_s) + exp(sink)),  O = sum_s exp(lse_s - lse) O_s
// where a head without a sink has one of -inf.
// The order of summation depends on the number of splits and d_head alone, so that the result is the same every time. Splits at
// fixed keys are folded one after the other, as attention kernels fold those that they work through themselves.
#include <cuda_runtime_api.h>

#include "cute_kernels/common/fold.h"
#include "cute_kernels/forward.h"
#include "cute_kernels/merge_partial.cuh"
#include "cute_kernels/programmatic_launch.h"

namespace pyflash {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kChunk = 8;  // vectors that a thread has in flight

// How a CTA's threads share rows, splits and columns.
struct Tiling {
  int columns;  // threads along a row
  int groups;   // of splits: split s is of group s % groups
  int rows;

  __host__ __device__ explicit Tiling(ForwardParams const& params, bool has_fixed_splits)
      : columns(columns_of(params.d_head)), groups(1) {
    while (!has_fixed_splits && 2 * groups <= params.num_splits &&
           2 * groups * columns <= kThreads) {
      groups *= 2;
    }
    rows = kThreads / (columns * groups);
  }
};
constexpr int kMaxRows = kThreads / 16;

template <class Reduce>
__device__ float reduce_warp(float value, Reduce&& reduce) {
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    value = reduce(value, __shfl_xor_sync(kAllLanes, value, lanes));
  }
  return value;
}

// Rows are numbered as the elements of lse, (batch, heads, seqlen), packed sequences being one.
__device__ RowCoord row_coord(ForwardParams const& params, int64_t n) {
  int const seqlen = params.q_sequences().tensor_rows();
  int64_t const head_and_batch = n / seqlen;
  return {head_and_batch / params.heads, head_and_batch % params.heads, n % seqlen};
}

// Four columns of a row of O.
template <class Element>
__device__ void store_row(ForwardParams const& params, int64_t row, int column,
                          float4 const& values) {
  Element* const o =
      static_cast<Element*>(params.o) + offset_in_o(params, row_coord(params, row)) + column;
  *reinterpret_cast<uint2*>(o) =
      uint2{pack2(values.x, values.y, Element{}), pack2(values.z, values.w, Element{})};
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
__global__ void __launch_bounds__(kThreads)
    merge_splits_kernel(__grid_constant__ ForwardParams const params) {
  __shared__ float weights[kMaxRows][kMaxSplits];
  __shared__ float4 sums[kThreads];  // (groups,rows,columns)
  Tiling const tiling(params, false);
  int const tidx = static_cast<int>(threadIdx.x);
  int64_t const n_rows = params.lse_strides.split;
  int64_t const first_row = int64_t(blockIdx.x) * tiling.rows;
  int const column =
      (static_cast<int>(blockIdx.y) * tiling.columns + tidx % tiling.columns) * kVector;
  int const row = tidx / tiling.columns % tiling.rows;
  int const group = tidx / tiling.columns / tiling.rows;
  bool const exists = first_row + row < n_rows && column < params.d_head;
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();            // launched while the splits are computed
  cudaTriggerProgrammaticLaunchCompletion();  // and the next kernel while they are merged
#endif

  // The first loads are in flight while weights are computed.
  int64_t const split_stride = n_rows * params.d_head;
  float const* const partial = params.o_partial + (first_row + row) * params.d_head + column;
  float4 values[kChunk];
  auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      int const split = first + i * tiling.groups;
      values[i] = exists && split < params.num_splits
                      ? *reinterpret_cast<float4 const*>(partial + split * split_stride)
                      : float4{};
    }
  };
  load(group);

  int const lane = tidx % kLanes;
  for (int i = tidx / kLanes; i < tiling.rows && first_row + i < n_rows; i += kThreads / kLanes) {
    RowCoord const coord = row_coord(params, first_row + i);
    SplitWeights const splits(params, first_row + i, load_sink<Element>(params, coord));
#pragma unroll
    for (int j = 0; j < SplitWeights::kPerLane; ++j) {
      weights[i][j * kLanes + lane] = splits.weights[j];
    }
    if (lane == 0 && blockIdx.y == 0) {
      params.lse[first_row + i] = splits.lse;
    }
  }
  __syncthreads();

  float4 sum{};
  for (int first = group; first < params.num_splits; first += kChunk * tiling.groups) {
    if (first != group) {
      load(first);
    }
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      int const split = first + i * tiling.groups;
      add(sum, split < params.num_splits ? weights[row][split] : 0.f, values[i]);
    }
  }
  sums[tidx] = sum;
  __syncthreads();
  if (group == 0 && exists) {
    for (int i = 1; i < tiling.groups; ++i) {
      add(sum, 1.f, sums[tidx + i * tiling.rows * tiling.columns]);
    }
    store_row<Element>(params, first_row + row, column, sum);
  }
}

struct FoldMath {
  static __device__ float exp(float x) { return __expf(x); }
  static __device__ float log(float x) { return __logf(x); }
  static __device__ float product(float a, float b) { return __fmul_rn(a, b); }
  static __device__ float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
};

template <class Element>
__global__ void __launch_bounds__(kThreads)
    fold_splits_kernel(__grid_constant__ ForwardParams const params) {
  __shared__ float lse[kMaxRows][kMaxSplits];
  Tiling const tiling(params, true);
  int const tidx = static_cast<int>(threadIdx.x);
  int64_t const n_rows = params.lse_strides.split;
  int64_t const first_row = int64_t(blockIdx.x) * tiling.rows;
  int const column =
      (static_cast<int>(blockIdx.y) * tiling.columns + tidx % tiling.columns) * kVector;
  int const row = tidx / tiling.columns;
  bool const exists = first_row + row < n_rows && column < params.d_head;
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();            // launched while the splits are computed
  cudaTriggerProgrammaticLaunchCompletion();  // and the next kernel while they are folded
#endif
  for (int i = tidx / kLanes; i < tiling.rows && first_row + i < n_rows; i += kThreads / kLanes) {
    for (int split = tidx % kLanes; split < params.num_splits; split += kLanes) {
      lse[i][split] = params.lse_partial[split * n_rows + first_row + i];
    }
  }
  __syncthreads();
  if (!exists) {
    return;
  }

  float const* const partial = params.o_partial + (first_row + row) * params.d_head + column;
  auto const split_at = [&](int place) { return params.num_splits - 1 - place; };
  Fold<FoldMath> fold;
  float4 sum{};
  for (int first = 0; first < params.num_splits; first += kChunk) {
    float lse_of[kChunk];
    float4 values[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      int const split = split_at(first + i);
      // Nobody wrote O of parts that attend nothing, which most may do.
      lse_of[i] = first + i < params.num_splits ? lse[row][split] : -INFINITY;
      values[i] = lse_of[i] != -INFINITY
                      ? *reinterpret_cast<float4 const*>(partial + split * n_rows * params.d_head)
                      : float4{};
    }
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      auto const weights = fold.add(lse_of[i]);
      sum = {weights.of(sum.x, values[i].x), weights.of(sum.y, values[i].y),
             weights.of(sum.z, values[i].z), weights.of(sum.w, values[i].w)};
    }
  }
  float const factor = fold.finish(load_sink<Element>(params, row_coord(params, first_row + row)));
  store_row<Element>(params, first_row + row, column,
                     {FoldMath::product(sum.x, factor), FoldMath::product(sum.y, factor),
                      FoldMath::product(sum.z, factor), FoldMath::product(sum.w, factor)});
  if (column == 0) {
    params.lse[first_row + row] = fold.lse();
  }
}

}  // namespace

int merge_splits(ListedForwardParams const& params, DType dtype, void* stream) {
  bool const fixed = params.has_fixed_splits;
  Tiling const tiling(params, fixed);
  int64_t const n_ctas = (params.lse_strides.split + tiling.rows - 1) / tiling.rows;
  int const row_columns = tiling.columns * kVector;
  if (n_ctas > INT32_MAX) {
    return cudaErrorInvalidConfiguration;
  }
  bool waits = false;
  if (cudaError_t const error = waits_for_previous_kernel(waits); error != cudaSuccess) {
    return error;
  }
  cudaLaunchAttribute attribute = programmatic_launch();
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<uint32_t>(n_ctas),
                        static_cast<uint32_t>((params.d_head + row_columns - 1) / row_columns));
  launch.blockDim = dim3(kThreads);
  launch.stream = static_cast<cudaStream_t>(stream);
  launch.attrs = &attribute;
  launch.numAttrs = waits && supports_programmatic_launch() ? 1 : 0;
  bool const is_fp16 = dtype == DType::FP16;
  auto const kernel =
      fixed ? (is_fp16 ? fold_splits_kernel<__half> : fold_splits_kernel<__nv_bfloat16>)
            : (is_fp16 ? merge_splits_kernel<__half> : merge_splits_kernel<__nv_bfloat16>);
  return cudaLaunchKernelEx(&launch, kernel, static_cast<ForwardParams const&>(params));
}

}  // namespace pyflash
