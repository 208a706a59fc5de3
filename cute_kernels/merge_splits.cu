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

// The row's lse over all splits; every lane returns it. -inf where no split attended anything.
__device__ float merge_lse(ForwardParams const& params, int64_t row) {
  int const lane = threadIdx.x % kLanes;
  float row_max = -INFINITY;
  for (int split = lane; split < params.num_splits; split += kLanes) {
    row_max = fmaxf(row_max, params.lse_partial[split * params.lse_strides.split + row]);
  }
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    row_max = fmaxf(row_max, __shfl_xor_sync(kAllLanes, row_max, lanes));
  }
  if (row_max == -INFINITY) {
    return -INFINITY;
  }
  float sum = 0.f;
  for (int split = lane; split < params.num_splits; split += kLanes) {
    sum += __expf(params.lse_partial[split * params.lse_strides.split + row] - row_max);
  }
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  }
  return row_max + __logf(sum);
}

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
  float const lse = merge_lse(params, row);
  if (lane == 0) {
    params.lse[row] = lse;
  }
  Element* const o = static_cast<Element*>(params.o) + offset_in_o(params, row);
  for (int column = lane * kVector; column < params.d_head; column += kLanes * kVector) {
    float4 sum{};
    for (int split = 0; split < params.num_splits; ++split) {
      int64_t const partial_row = split * params.lse_strides.split + row;
      float const partial_lse = params.lse_partial[partial_row];
      if (partial_lse == -INFINITY) {
        continue;  // nothing attended: a weight of 0
      }
      float const weight = __expf(partial_lse - lse);
      float4 const partial =
          *reinterpret_cast<float4 const*>(params.o_partial + partial_row * params.d_head + column);
      sum.x += weight * partial.x;
      sum.y += weight * partial.y;
      sum.z += weight * partial.z;
      sum.w += weight * partial.w;
    }
    *reinterpret_cast<uint2*>(o + column) =
        uint2{pack2(sum.x, sum.y, Element{}), pack2(sum.z, sum.w, Element{})};
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
