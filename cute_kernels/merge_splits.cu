// Merges the partial results of a forward pass whose keys were split among CTAs:
//   lse = ln(sum_s exp(lse_s) + exp(sink)),  O = sum_s exp(lse_s - lse) O_s
// where a head without a sink has one of -inf.
// The order of summation depends on the number of splits and d_head alone, so that the result is the same every time. Of splits
// at fixed keys it does not depend on their number either: those of weight 0 are left out, and a row that one split attends has
// that split's bits.
#include <cuda_runtime_api.h>

#include "cute_kernels/forward.h"
#include "cute_kernels/merge_partial.cuh"
#include "cute_kernels/programmatic_launch.h"

namespace pyflash {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kChunk = 8;  // vectors that a thread has in flight

constexpr int kFixedGroups = 4;

// How a CTA's threads share rows, splits and columns.
struct Tiling {
  int columns;  // threads along a row
  int groups;   // of splits: split s is of group s % groups
  int rows;

  __host__ __device__ explicit Tiling(ForwardParams const& params, bool has_fixed_splits)
      : columns(columns_of(params.d_head)), groups(has_fixed_splits ? kFixedGroups : 1) {
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

// What the splits of a row weigh; a lane holds those of every 32nd split.
template <bool kFixedSplits>
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
    lse = kFixedSplits && sum == 1.f ? row_max : row_max + __logf(sum);
    float const inverse = sum == 0.f ? 0.f : 1.f / sum;
    for (float& weight : weights) {
      weight *= inverse;
    }
  }

  // Whether any of this lane's splits has a weight.
  __device__ bool has_weight() const {
    bool has = false;
    for (float const weight : weights) {
      has |= weight != 0;
    }
    return has;
  }
};

template <class Element, bool kFixedSplits>
__global__ void __launch_bounds__(kThreads)
    merge_splits_kernel(__grid_constant__ ForwardParams const params) {
  __shared__ float weights[kMaxRows][kMaxSplits];
  __shared__ float4 sums[kThreads];  // (groups,rows,columns)
  __shared__ bool is_attended[kFixedSplits ? kMaxRows : 1];
  Tiling const tiling(params, kFixedSplits);
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

  // The first loads are in flight while weights are computed. Of splits at fixed keys, parts of weight 0 are not written, and most
  // may be such.
  int64_t const split_stride = n_rows * params.d_head;
  float const* const partial = params.o_partial + (first_row + row) * params.d_head + column;
  float4 values[kChunk];
  auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      int const split = first + i * tiling.groups;
      values[i] = exists && split < params.num_splits && (!kFixedSplits || weights[row][split] != 0)
                      ? *reinterpret_cast<float4 const*>(partial + split * split_stride)
                      : float4{};
    }
  };
  if constexpr (!kFixedSplits) {
    load(group);
  }

  int const lane = tidx % kLanes;
  for (int i = tidx / kLanes; i < tiling.rows && first_row + i < n_rows; i += kThreads / kLanes) {
    RowCoord const coord = row_coord(params, first_row + i);
    using Weights = SplitWeights<kFixedSplits>;
    Weights const splits(params, first_row + i, load_sink<Element>(params, coord));
#pragma unroll
    for (int j = 0; j < Weights::kPerLane; ++j) {
      weights[i][j * kLanes + lane] = splits.weights[j];
    }
    if constexpr (kFixedSplits) {
      bool const attends = __any_sync(kAllLanes, splits.has_weight());
      if (lane == 0) {
        is_attended[i] = attends;
      }
    }
    if (lane == 0 && blockIdx.y == 0) {
      params.lse[first_row + i] = splits.lse;
    }
  }
  __syncthreads();

  // NOTE: -0 + x is x whatever x is, and 0 + -0 is not.
  constexpr float kNothing = kFixedSplits ? -0.f : 0.f;
  float4 sum{kNothing, kNothing, kNothing, kNothing};
  for (int first = group; first < params.num_splits; first += kChunk * tiling.groups) {
    if (kFixedSplits || first != group) {
      load(first);
    }
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      int const split = first + i * tiling.groups;
      float const weight = split < params.num_splits ? weights[row][split] : 0.f;
      if (!kFixedSplits || weight != 0) {
        add(sum, weight, values[i]);
      }
    }
  }
  sums[tidx] = sum;
  __syncthreads();
  if (group == 0 && exists) {
    for (int i = 1; i < tiling.groups; ++i) {
      add(sum, 1.f, sums[tidx + i * tiling.rows * tiling.columns]);
    }
    if constexpr (kFixedSplits) {
      sum = is_attended[row] ? sum : float4{};
    }
    Element* const o = static_cast<Element*>(params.o) +
                       offset_in_o(params, row_coord(params, first_row + row)) + column;
    *reinterpret_cast<uint2*>(o) =
        uint2{pack2(sum.x, sum.y, Element{}), pack2(sum.z, sum.w, Element{})};
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
      fixed
          ? (is_fp16 ? merge_splits_kernel<__half, true> : merge_splits_kernel<__nv_bfloat16, true>)
          : (is_fp16 ? merge_splits_kernel<__half, false>
                     : merge_splits_kernel<__nv_bfloat16, false>);
  return cudaLaunchKernelEx(&launch, kernel, static_cast<ForwardParams const&>(params));
}

}  // namespace pyflash
