// What a launch of a backward is made of, on the host: tensor maps, the order of tiles, the size of the workspace.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "cute_kernels/sm90/backward/config.h"
#include "cute_kernels/sm90/backward/params.h"
#include "cute_kernels/sm90/sections.h"
#include "cute_kernels/sm90/tensor_map.h"

namespace pyflash::sm90::backward {

using Config = FlashBackwardSm90Config;

// Bytes of the workspace: what its members point to follows each other.
struct Workspace {
  int64_t dq_sum;
  int64_t numbers;  // lse2, and delta

  int64_t bytes() const { return dq_sum + 2 * numbers; }
};

inline Workspace workspace_of(Config const& config, BackwardParams const& problem) {
  int64_t const n_rows =
      int64_t(problem.batch) * problem.heads * ceil_div(problem.seqlen_q, config.B_r) * config.B_r;
  return {.dq_sum = n_rows * config.d_head * int64_t(sizeof(float)),
          .numbers = n_rows * int64_t(sizeof(float))};
}

// memory: aligned to 128 bytes.
inline void set_workspace(Config const& config, BackwardParams& problem, void* memory) {
  Workspace const workspace = workspace_of(config, problem);
  char* const begin = static_cast<char*>(memory);
  problem.n_m_blocks = int(ceil_div(problem.seqlen_q, config.B_r));
  problem.dq_sum = reinterpret_cast<float*>(begin);
  problem.lse2 = reinterpret_cast<float*>(begin + workspace.dq_sum);
  problem.delta = reinterpret_cast<float*>(begin + workspace.dq_sum + workspace.numbers);
}

inline int64_t n_query_blocks(BackwardParams const& problem) {
  return int64_t(problem.batch) * problem.heads * problem.n_m_blocks;
}

inline int64_t n_tiles(Config const& config, BackwardParams const& problem) {
  return int64_t(ceil_div(problem.seqlen_k, config.B_c)) * problem.heads_kv * problem.batch;
}

// (rows, heads, batch). NOTE: a map has no empty extents; what has no rows is not loaded.
inline std::array<MapDimension, 3> map_dimensions(Sequences const& sequences, int box, int heads,
                                                  int batch, TensorStrides const& strides) {
  return {{{std::max(sequences.tensor_rows(), 1), strides.row, box},
           {heads, strides.head, 1},
           {sequences.tensor_batches(batch), strides.batch, 1}}};
}

inline cudaError_t set_tensor_maps(KernelParams& params, Config const& config,
                                   TensorMapEncoder encoder) {
  if (encoder == nullptr) {
    return cudaErrorNotSupported;
  }
  BackwardParams const& problem = params.problem;
  MapForm const form{.dtype = config.dtype, .slab = 64};
  auto encode_queries = [&](CUtensorMap& map, void const* base, TensorStrides const& strides) {
    return encode_tensor_map(
        encoder, map, base, form, problem.d_head,
        map_dimensions(problem.q_sequences(), config.B_r, problem.heads, problem.batch, strides));
  };
  auto encode_keys = [&](CUtensorMap& map, void const* base, TensorStrides const& strides) {
    return encode_tensor_map(encoder, map, base, form, problem.d_head,
                             map_dimensions(problem.k_sequences(), config.B_c, problem.heads_kv,
                                            problem.batch, strides));
  };
  bool const encoded = encode_queries(params.q_map, problem.q, problem.q_strides) &&
                       encode_queries(params.do_map, problem.grad_o, problem.grad_o_strides) &&
                       encode_keys(params.k_map, problem.k, problem.k_strides) &&
                       encode_keys(params.v_map, problem.v, problem.v_strides);
  return encoded ? cudaSuccess : cudaErrorInvalidValue;
}

// n_ctas: that run at a time. There are tiles, and no more than an int counts.
inline void set_order(KernelParams& params, Config const& config, int64_t n_ctas) {
  BackwardParams const& problem = params.problem;
  TileOrder& order = params.order;
  int64_t const n_blocks = ceil_div(problem.seqlen_k, config.B_c);
  int64_t const n_heads = int64_t(problem.heads_kv) * problem.batch;
  int const group = problem.heads / problem.heads_kv;
  // Q, dO and the sums of dQ, of a head of K and V.
  int64_t const bytes =
      int64_t(problem.seqlen_q) * group * config.d_head * (2 * kElementBytes + int(sizeof(float)));
  Sections const sections = divide_into_sections(false, n_ctas, n_blocks, n_heads, 1, bytes);
  order.n_tiles = int(n_blocks * n_heads);
  order.last_section = int(sections.last);
  order.by_section_tiles = cutlass::FastDivmod(int(n_blocks * sections.heads));
  order.by_section = cutlass::FastDivmod(int(sections.heads));
  order.by_last_section = cutlass::FastDivmod(int(n_heads - sections.last * sections.heads));
  order.by_heads = cutlass::FastDivmod(problem.heads_kv);
}

}  // namespace pyflash::sm90::backward
