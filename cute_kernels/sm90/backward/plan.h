// What a launch of a backward is made of, on the host: tensor maps, the order of tiles, the grid.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "cute_kernels/sm90/backward/kernel_params.h"
#include "cute_kernels/sm90/backward/shape.h"
#include "cute_kernels/sm90/sections.h"
#include "cute_kernels/sm90/tensor_map.h"

namespace pyflash::sm90::backward {

using Config = FlashBackwardSm90Config;

// Tiles are counted in ints.
constexpr int64_t kMaxTiles = int64_t(1) << 30;

// Of a head of K and V. problem: with the shape of the config.
inline int64_t count_blocks(Config const& config, AttentionGradients const& problem) {
  return problem.n_key_blocks() * column_parts(config);
}
inline int64_t count_tiles(Config const& config, AttentionGradients const& problem) {
  return count_blocks(config, problem) * problem.n_heads_of_keys();
}

// (rows, heads, batch). NOTE: a map has no empty extents; what has no rows is not loaded.
inline std::array<MapDimension, 3> map_dimensions(Sequences const& sequences, int box, int heads,
                                                  int batch, TensorStrides const& strides) {
  return {{{std::max(sequences.tensor_rows(), 1), strides.row, box},
           {heads, strides.head, 1},
           {sequences.tensor_batches(batch), strides.batch, 1}}};
}

inline std::array<MapDimension, 3> map_dimensions_of_queries(Config const& config,
                                                             AttentionGradients const& problem,
                                                             TensorStrides const& strides) {
  return map_dimensions(problem.q_sequences, config.B_r, problem.heads, problem.batch, strides);
}
inline std::array<MapDimension, 3> map_dimensions_of_keys(Config const& config,
                                                          AttentionGradients const& problem,
                                                          TensorStrides const& strides) {
  return map_dimensions(problem.k_sequences, config.B_c, problem.heads_kv, problem.batch, strides);
}

inline cudaError_t set_tensor_maps(KernelParams& params, Config const& config,
                                   TensorMapEncoder encoder) {
  if (encoder == nullptr) {
    return cudaErrorNotSupported;
  }
  AttentionGradients const& problem = params.problem;
  auto encode = [&](CUtensorMap& map, void const* base, int slab, auto const& dimensions) {
    // NOTE: no tensor is at a null address, not even one without queries.
    return encode_tensor_map(encoder, map, base ? base : problem.k,
                             {.dtype = config.dtype, .slab = slab}, problem.d_head, dimensions);
  };
  auto of_queries = [&](TensorStrides const& strides) {
    return map_dimensions_of_queries(config, problem, strides);
  };
  auto of_keys = [&](TensorStrides const& strides) {
    return map_dimensions_of_keys(config, problem, strides);
  };
  int const slab = slab_of_others(config);
  bool const encoded =
      encode(params.q_map, problem.q, slab, of_queries(problem.q_strides)) &&
      encode(params.do_map, problem.grad_o, slab, of_queries(problem.grad_o_strides)) &&
      encode(params.k_map, problem.k, slab_of_K(config), of_keys(problem.k_strides)) &&
      encode(params.v_map, problem.v, slab, of_keys(problem.v_strides));
  return encoded ? cudaSuccess : cudaErrorInvalidValue;
}

inline char const* refusal(Config const& config, BackwardParams const& problem) {
  if (count_tiles(config, problem) > kMaxTiles) {
    return "it has more than 2^30 tiles of keys";
  }
  constexpr int64_t kMaxRows = (int64_t(1) << 31) - 1;
  if (problem.n_workspace_rows() > kMaxRows) {
    return "it has 2^31 or more queries, counting those of each head";
  }
  if (char const* const reason =
          refusal_of_map(map_dimensions_of_queries(config, problem, problem.q_strides))) {
    return reason;
  }
  for (TensorStrides const& strides : {problem.k_strides, problem.v_strides}) {
    if (char const* const reason =
            refusal_of_map(map_dimensions_of_keys(config, problem, strides))) {
      return reason;
    }
  }
  return nullptr;
}

// CTAs of a cluster, for each tile: a power of two that divides the heads of a group.
inline int cluster_of(Config const& config, AttentionGradients const& problem, int64_t n_tiles,
                      int64_t n_resident) {
  // Under a mask, and among sequences of different lengths, CTAs of one head of K and V go through the query heads each at its
  // own pace. With more heads for each CTA, L2 does not hold what they have of Q, dO and dQ between them.
  constexpr int kMostHeads = 4;
  int const group = problem.heads / problem.heads_kv;
  bool const differ =
      problem.mask.cuts_right() || problem.mask.cuts_left() || problem.k_sequences.is_packed();
  int cluster = 1;
  while (cluster < max_cluster(config) && group % (2 * cluster) == 0 &&
         ((differ && group / cluster > kMostHeads) || n_tiles * cluster * 2 <= n_resident)) {
    cluster *= 2;
  }
  return cluster;
}

// The queries of a head that are to have room in L2. Of packed sequences they are those of the longest.
inline int64_t rows_at_a_time(AttentionGradients const& problem) {
  // In one order a tile waits for those of its head before it: less if fewer of a head and more heads run at a time. Without a mask,
  // or from the first keys on, the tiles of a head are at nearly the same queries, so that L2 needs only a part of a long sequence.
  constexpr int kLong = 4096;
  bool const abreast =
      problem.deterministic && (problem.first_keys_first || !problem.mask.cuts_right());
  int64_t const longest = problem.q_sequences.longest;
  return abreast && longest >= kLong ? longest / 2 : longest;
}

// n_heads: of k and v, that the kernel runs for. n_ctas: that run at a time. There are tiles, and no more than kMaxTiles.
inline void set_order(KernelParams& params, Config const& config, int64_t n_heads, int64_t n_ctas) {
  AttentionGradients const& problem = params.problem;
  TileOrder& order = params.order;
  int64_t const n_blocks = count_blocks(config, problem);
  // CTAs go through the query heads of a group one after the other: those of one head of K and V are at about two at a time. A
  // section of fewer heads would hold too few tiles, and its longest ones start when those of the section before have ended.
  int const heads_at_a_time = std::min(problem.heads / problem.heads_kv, 2);
  // Q, dO and the sums of dQ, of a head of K and V.
  int64_t const bytes = rows_at_a_time(problem) * heads_at_a_time * config.d_head *
                        (2 * kElementBytes + int(sizeof(float)));
  // A head whose sums are those of one before it is in a later section, all of whose tiles start later.
  int64_t const most_heads =
      problem.recycles_sums() ? problem.heads_with_sums / 2 : std::max<int64_t>(n_heads, 1);
  Sections const sections =
      divide_into_sections(false, n_ctas, n_blocks, n_heads, 1, bytes, most_heads);
  order.n_tiles = int(n_blocks * n_heads);
  order.n_blocks = int(n_blocks);
  order.last_section = int(sections.last);
  order.by_section_tiles = Divisor(int(n_blocks * sections.heads));
  order.by_section = Divisor(int(sections.heads));
  order.by_last_section = Divisor(int(n_heads - sections.last * sections.heads));
  order.by_heads = Divisor(problem.heads_kv);
}

struct Plan {
  KernelParams params;
  int64_t n_ctas;  // a multiple of the cluster; 0: there is nothing to launch
};

// n_resident: CTAs that run at a time.
inline cudaError_t make_plan(Plan& plan, Config const& config, BackwardParams const& problem,
                             int64_t n_resident, TensorMapEncoder encoder) {
  plan = {};
  int64_t const n_heads = problem.heads_of_slice;
  int64_t const n_tiles = count_blocks(config, problem) * n_heads;
  if (n_tiles == 0) {
    return cudaSuccess;
  }
  if (n_tiles > kMaxTiles) {
    return cudaErrorInvalidConfiguration;
  }
  plan.params.problem = problem;
  plan.params.dropout = problem.dropout;
  plan.params.first_head = problem.first_head_of_slice;
  int const cluster = cluster_of(config, problem, n_tiles, n_resident);
  plan.params.cluster = cluster;
  plan.n_ctas = n_tiles * cluster;
  set_order(plan.params, config, n_heads, std::max<int64_t>(n_resident / cluster, 1));
  return set_tensor_maps(plan.params, config, encoder);
}

}  // namespace pyflash::sm90::backward
