// From a config and a problem to a launched kernel: tensor maps, the order of tiles, the __global__ wrapper and its
// launcher. Included by the emitted translation units only.
#pragma once

#include "cute_kernels/sm90/forward_kernel.cuh"

#include <algorithm>
#include <numeric>

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace pyflash {

namespace sm90 {

// cuTensorMapEncodeTiled of the driver, without linking to libcuda; nullptr where the driver has none.
inline decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() {
  static auto const encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaError_t const error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &result);
    bool const found = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found ? function : nullptr);
  }();
  return encoder;
}

struct MapDimension {
  int64_t extent;
  int64_t stride;  // elements
  int box;
};

// A tensor map over rows of `columns` contiguous elements, in boxes of 64 columns; what of a box lies outside reads as 0.
template <int kRank>
bool encode_tensor_map(CUtensorMap& map, void const* base, DType dtype, int columns,
                       MapDimension const (&dimensions)[kRank]) {
  constexpr int kElementBytes = 2;
  cuuint64_t extents[kRank + 1] = {cuuint64_t(columns)};
  cuuint64_t strides[kRank];
  cuuint32_t box[kRank + 1] = {64};
  cuuint32_t element_strides[kRank + 1] = {1};
  for (int i = 0; i < kRank; ++i) {
    extents[i + 1] = dimensions[i].extent;
    // NOTE: the stride of an extent of 1 may be anything, but the encoder looks at it.
    strides[i] = dimensions[i].extent == 1 ? 16 : dimensions[i].stride * kElementBytes;
    box[i + 1] = dimensions[i].box;
    element_strides[i + 1] = 1;
  }
  auto const type =
      dtype == DType::FP16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  auto const encode = tensor_map_encoder();
  return encode != nullptr && encode(&map, type, kRank + 1, const_cast<void*>(base), extents,
                                     strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                     CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <class Traits, Features kFeatures>
bool set_tensor_maps(KernelParams& params, DType dtype) {
  ForwardParams const& problem = params.problem;
  int const group = params.order.by_group.divisor;
  bool const packed_q = problem.cu_seqlens_q != nullptr;
  bool const packed_k = problem.cu_seqlens_k != nullptr;
  int64_t const rows_q = packed_q ? problem.total_q : problem.seqlen_q;
  int64_t const rows_k = packed_k ? problem.total_k : problem.seqlen_k;
  int64_t const batch_q = packed_q ? 1 : problem.batch;
  int64_t const batch_k = packed_k ? 1 : problem.batch;
  auto kv_map = [&](CUtensorMap& map, void const* base, TensorStrides const& strides) {
    // NOTE: a map has no empty extents and no null address; without keys, nothing is loaded.
    return encode_tensor_map(map, rows_k > 0 ? base : problem.q, dtype, problem.d_head,
                             {{std::max<int64_t>(rows_k, 1), strides.row, Traits::kBlockN},
                              {problem.heads_kv, strides.head, 1},
                              {batch_k, strides.batch, 1}});
  };
  return encode_tensor_map(params.q_map, problem.q, dtype, problem.d_head,
                           {{group, problem.q_strides.head, group},
                            {rows_q, problem.q_strides.row, Traits::kMmaM / group},
                            {problem.heads / group, problem.q_strides.head * group, 1},
                            {batch_q, problem.q_strides.batch, 1}}) &&
         kv_map(params.k_map, problem.k, problem.k_strides) &&
         kv_map(params.v_map, problem.v, problem.v_strides);
}

// Returns the number of tiles, which may be too many for TileOrder. n_ctas: that run at a time.
template <class Traits, Features kFeatures>
int64_t set_order(KernelParams& params, int64_t n_ctas) {
  ForwardParams const& problem = params.problem;
  TileOrder& order = params.order;
  int const group = Traits::kPackGqa ? problem.heads / problem.heads_kv : 1;
  int const n_heads = problem.heads / group;
  int const n_queries = Traits::kNConsumers * (Traits::kMmaM / group);
  int64_t const n_m_blocks = (problem.seqlen_q + n_queries - 1) / n_queries;
  int64_t const n_rest = int64_t(n_heads) * problem.num_splits * problem.batch;
  if (n_m_blocks * n_rest > INT32_MAX || n_m_blocks == 0) {
    return n_m_blocks * n_rest;
  }
  constexpr int64_t kL2Bytes = 36 << 20;
  int64_t const bytes_per_head = std::max<int64_t>(problem.seqlen_k, 1) * 2 * Traits::kHeadDim *
                                 sizeof(typename Traits::Element);
  int64_t section = std::max<int64_t>(kL2Bytes / bytes_per_head * (n_heads / problem.heads_kv), 1);
  if constexpr (Traits::kPersistent) {
    // Each CTA takes as long over a section as any other where a section is a number of double rounds.
    int64_t const rounds = 2 * n_ctas;
    int64_t const unit = rounds / std::gcd(rounds, n_m_blocks);
    // Too many heads in a section cost less than CTAs that wait for others, up to twice what L2 holds.
    section = section >= unit ? section / unit * unit : 2 * section >= unit ? unit : n_rest;
  }
  section = std::min(section, n_rest);
  order.n_tiles = int(n_m_blocks * n_rest);
  order.section = int(section);
  order.last_section = int((n_rest - 1) / section);
  order.by_m_blocks = FastDivmod(int(n_m_blocks));
  order.by_splits = FastDivmod(problem.num_splits);
  order.by_heads = FastDivmod(n_heads);
  order.by_section_tiles = FastDivmod(int(n_m_blocks * section));
  order.by_section = FastDivmod(int(section));
  order.by_last_section = FastDivmod(int(n_rest - order.last_section * section));
  order.by_group = FastDivmod(group);
  return order.n_tiles;
}

}  // namespace sm90

template <FlashForwardSm90Config kConfig, Features kFeatures>
__global__ void __launch_bounds__(sm90::KernelTraits<kConfig>::kNThreads,
                                  sm90::KernelTraits<kConfig>::kCtasPerSm)
    flash_forward_sm90_kernel(__grid_constant__ sm90::KernelParams const params) {
  sm90::forward_cta<sm90::KernelTraits<kConfig>, kFeatures>(params);
}

// The number of SMs of the current device.
inline cudaError_t count_sms(int& n_sms) {
  int device;
  cudaError_t const error = cudaGetDevice(&device);
  return error != cudaSuccess
             ? error
             : cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, device);
}

template <FlashForwardSm90Config kConfig, Features kFeatures>
int launch_forward_sm90(ForwardParams const& problem, float const* sinks, cudaStream_t stream) {
  using Traits = sm90::KernelTraits<kConfig>;
  constexpr int kSmemBytes = sizeof(typename Traits::SharedStorage);
  sm90::KernelParams params{};
  params.problem = problem;
  params.sinks = sinks;
  int n_sms = 0;
  cudaError_t error = count_sms(n_sms);
  if (error != cudaSuccess) {
    return error;
  }
  int64_t const n_resident = n_sms * Traits::kCtasPerSm;
  int64_t const n_tiles = sm90::set_order<Traits, kFeatures>(params, n_resident);
  if (n_tiles == 0 || (problem.cu_seqlens_q != nullptr && problem.total_q == 0)) {
    return cudaSuccess;
  }
  if (n_tiles > INT32_MAX) {
    return cudaErrorInvalidConfiguration;
  }
  if (!sm90::set_tensor_maps<Traits, kFeatures>(params, kConfig.dtype)) {
    return cudaErrorInvalidValue;
  }
  auto const kernel = flash_forward_sm90_kernel<kConfig, kFeatures>;
  // Per device and idempotent: the attribute belongs to the current device's copy of the kernel.
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes);
  if (error != cudaSuccess) {
    return error;
  }
  int64_t const n_ctas = Traits::kPersistent ? std::min(n_tiles, n_resident) : n_tiles;
  kernel<<<dim3(uint32_t(n_ctas)), dim3(Traits::kNThreads), kSmemBytes, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace pyflash
