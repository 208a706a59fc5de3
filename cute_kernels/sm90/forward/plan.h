// What a launch of an SM90 kernel is made of, on the host: what TMA refuses, tensor maps, the order of tiles, the grid.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cute_kernels/config.h"
#include "cute_kernels/params.h"
#include "cute_kernels/sm90/forward/host.h"
#include "cute_kernels/sm90/forward/kernel_params.h"
#include "cute_kernels/sm90/forward/shape.h"
#include "cute_kernels/sm90/sections.h"
#include "cute_kernels/sm90/tensor_map.h"

namespace pyflash::sm90 {

using Config = FlashForwardSm90Config;

// Query heads of a head of K and V; 1 of no heads.
inline int heads_of_group(ForwardParamsWithoutPages const& problem) {
  return problem.heads_kv > 0 ? std::max(problem.heads / problem.heads_kv, 1) : 1;
}

// Those that are rows of one tile beside each other.
inline int rows_per_query(Config const& config, ForwardParamsWithoutPages const& problem) {
  return config.pack_gqa ? heads_of_group(problem) : 1;
}

// The dimensions of Q's map but for the columns: (group, rows, heads, batch).
inline std::array<MapDimension, 4> map_dimensions_Q(Config const& config,
                                                    ForwardParamsWithoutPages const& problem) {
  Sequences const sequences = problem.q_sequences();
  int const group = rows_per_query(config, problem);
  TensorStrides const& strides = problem.q_strides;
  return {{{group, strides.head, group},
           {sequences.tensor_rows(), strides.row, kMmaM / group},
           {problem.heads / group, strides.head * group, 1},
           {sequences.tensor_batches(problem.batch), strides.batch, 1}}};
}

// Those of the maps of K and of V: (rows, heads, batch), or of pages (rows, heads, page). Pages that do not exist lie outside.
inline std::array<MapDimension, 3> map_dimensions_KV(Config const& config, int batch,
                                                     KvSource const& kv, KvTensor const& tensor) {
  TensorStrides const& strides = tensor.strides;
  if (kv.is_paged()) {
    return {{{kv.pages.size, strides.row, box_rows(config.B_c, kv.pages)},
             {kv.heads, strides.head, 1},
             {std::max(kv.pages.number, 1), strides.batch, 1}}};
  }
  // NOTE: a map has no empty extents; without keys, nothing is loaded.
  return {{{std::max(kv.sequences.tensor_rows(), 1), strides.row, config.B_c},
           {kv.heads, strides.head, 1},
           {kv.sequences.tensor_batches(batch), strides.batch, 1}}};
}

// Few queries wait for memory. Where rows are no whole lines, whoever loads the next head loads the rest of these.
inline MapForm form_of_maps(Config const& config, int d_head) {
  return {.dtype = config.dtype,
          .slab = slab_columns(config),
          .promotion = config.pack_gqa && d_head * kElementBytes % 128 != 0
                           ? CU_TENSOR_MAP_L2_PROMOTION_L2_64B
                           : CU_TENSOR_MAP_L2_PROMOTION_L2_128B};
}

// Whether a kernel gathers rows of K and V, and reads no maps of them.
inline bool gathers(KvSource const& kv) { return kv.is_paged() && !kv.pages.are_boxes(); }

// NOTE: the stride of an extent of 1 may be anything.
inline int64_t step_bytes(KvTensor const& tensor, Pages const& pages) {
  constexpr int64_t kLongest = int64_t(1) << 30;
  int64_t step = kLongest;
  if (pages.number > 1) {
    step = std::gcd(step, tensor.strides.batch * kElementBytes);
  }
  if (pages.size > 1) {
    step = std::gcd(step, tensor.strides.row * kElementBytes);
  }
  return step;
}
// Steps of a page and of a row, and of all of them.
struct PageSteps {
  int64_t of_page;
  int64_t of_row;
  int64_t all;
};
inline PageSteps page_steps(KvTensor const& tensor, Pages const& pages) {
  int64_t const bytes = step_bytes(tensor, pages);
  int64_t const of_page = pages.number > 1 ? tensor.strides.batch * kElementBytes / bytes : 0;
  int64_t const of_row = pages.size > 1 ? tensor.strides.row * kElementBytes / bytes : 0;
  return {of_page, of_row, (pages.number - 1) * of_page + (pages.size - 1) * of_row};
}
inline RowSteps row_steps(KvTensor const& tensor, Pages const& pages) {
  PageSteps const steps = page_steps(tensor, pages);
  return {.bytes = uint32_t(step_bytes(tensor, pages)),
          .of_page = uint32_t(steps.of_page),
          .of_row = uint32_t(steps.of_row)};
}

inline cudaError_t set_tensor_maps(KernelParams& params, Config const& config,
                                   TensorMapEncoder encoder) {
  if (encoder == nullptr) {
    return cudaErrorNotSupported;
  }
  ForwardParamsWithoutPages const& problem = params.problem;
  KvSource const kv = params.kv();
  auto encode = [&](CUtensorMap& map, void const* base, auto const& dimensions) {
    // NOTE: no tensor is at a null address, not even one without keys.
    return encode_tensor_map(encoder, map, base ? base : problem.q,
                             form_of_maps(config, problem.d_head), problem.d_head, dimensions);
  };
  bool const encoded =
      encode(params.q_map, problem.q, map_dimensions_Q(config, problem)) &&
      (gathers(kv) ||
       (encode(params.k_map, kv.k.data, map_dimensions_KV(config, problem.batch, kv, kv.k)) &&
        encode(params.v_map, kv.v.data, map_dimensions_KV(config, problem.batch, kv, kv.v))));
  return encoded ? cudaSuccess : cudaErrorInvalidValue;
}

// Tiles are counted in ints, with room for the last round of persistent CTAs.
constexpr int64_t kMaxTiles = int64_t(1) << 30;

inline int64_t count_m_blocks(Config const& config, ForwardParamsWithoutPages const& problem) {
  int const n_queries = config.n_consumers * (kMmaM / rows_per_query(config, problem));
  return ceil_div(problem.q_sequences().longest, n_queries);
}

// The tiles of one pass.
inline int64_t count_tiles(Config const& config, ForwardParamsWithoutPages const& problem) {
  int64_t const n_heads = problem.heads / rows_per_query(config, problem);
  return count_m_blocks(config, problem) * n_heads * problem.batch;
}

inline char const* refusal(Config const& config, ListedForwardParams const& problem) {
  if (problem.has_shares()) {
    if (!config.persistent) {
      return "its keys are shared by sequences, for which CTAs work through several tiles: the "
             "config is not persistent";
    }
    if (char const* const reason = refusal_of_shares(problem, tile_shape(config))) {
      return reason;
    }
  }
  if (problem.dropout.drops() && config.pack_gqa) {
    return "its rows are of several heads, and dropout is of rows of one";
  }
  if (rows_per_query(config, problem) > kMmaM) {
    return "its warpgroups pack the query heads of a head of k and v into 64 rows, and there are "
           "more";
  }
  if (problem.sinks.data != nullptr && problem.kv().sequences.longest == 0) {
    return "it has sinks and no keys";
  }
  if (count_tiles(config, problem) > kMaxTiles) {
    return "it has more than 2^30 Q tiles";
  }
  if (char const* const reason = refusal_of_map(map_dimensions_Q(config, problem))) {
    return reason;
  }
  KvSource const kv = problem.kv();
  for (KvTensor const& tensor : {kv.k, kv.v}) {
    // NOTE: a kernel that gathers runs problems whose pages are boxes, too, where it alone is built.
    if (kv.is_paged() && page_steps(tensor, kv.pages).all >= kNoRow) {
      return "the pages of k or v span 2^32 times the largest power of two that divides their "
             "strides, and rows are counted by 32 bits";
    }
    if (gathers(kv)) {
      continue;
    }
    if (char const* const reason =
            refusal_of_map(map_dimensions_KV(config, problem.batch, kv, tensor))) {
      return reason;
    }
  }
  return nullptr;
}

// Keys that a query attends, of sequences of the largest lengths.
inline int count_keys(ForwardParamsWithoutPages const& problem, int query) {
  int const n_keys = problem.kv().sequences.longest;
  int const aligned = aligned_column(query, problem.q_sequences().longest, n_keys);
  return problem.mask().keys_from(aligned, n_keys).of_some(1).from_0().size();
}

// n_ctas: that run at a time. There are tiles, and no more than kMaxTiles.
inline void set_order(KernelParams& params, Config const& config, int64_t n_ctas) {
  ForwardParamsWithoutPages const& problem = params.problem;
  int const cluster = problem.cluster;
  TileOrder& order = params.order;
  int const group = rows_per_query(config, problem);
  int const n_heads = problem.heads / group;
  int64_t const n_m_blocks = count_m_blocks(config, problem);
  int64_t const n_rest = int64_t(n_heads) * (problem.num_splits / cluster) * problem.batch;
  int64_t const bytes_of_kv =
      int64_t(problem.kv().sequences.longest) * 2 * config.d_head * kElementBytes;
  Sections const sections =
      divide_into_sections(config.persistent && cluster == 1, n_ctas, n_m_blocks, n_rest,
                           n_heads / problem.heads_kv, bytes_of_kv);
  order.n_tiles = int(n_m_blocks * n_rest);
  order.section = int(sections.heads);
  order.last_section = int(sections.last);
  bool const first_is_longest =
      count_keys(problem, 0) > count_keys(problem, problem.q_sequences().longest - 1);
  order.longest = first_is_longest ? 0 : int(n_m_blocks - 1);
  order.by_m_blocks = Divisor(int(n_m_blocks));
  order.by_splits = Divisor(problem.num_splits);
  order.by_heads = Divisor(n_heads);
  order.by_section_tiles = Divisor(int(n_m_blocks * sections.heads));
  order.by_section = Divisor(order.section);
  order.by_last_section = Divisor(int(n_rest - sections.last * sections.heads));
  order.by_group = Divisor(heads_of_group(problem));
}

// n_ctas: of the grid. A step is a multiple of a section's heads, each of which has one longest tile, so that other CTAs take them
// in the next section. It is some three eighths of the CTAs, so that the first ones take them again many sections later. It is 0 where
// all heads are one section.
inline Turns turns_of(TileOrder const& order, int n_ctas) {
  int const step = order.section * std::max(n_ctas * 3 / 8 / order.section, 1);
  return {.step = order.last_section > 0 ? step : 0, .by_ctas = Divisor(n_ctas)};
}

// The same of tiles that are listed. All heads are a section, so that each round of persistent CTAs has tiles of nearly one
// length; of more heads fewer than four of the CTAs would share each one's keys.
inline void set_listed_order(KernelParams& params, Config const& config,
                             ListedForwardParams const& problem, int64_t n_ctas) {
  constexpr int kSharers = 4;
  TileOrder& order = params.order;
  int const group = rows_per_query(config, problem);
  int const n_splits = problem.num_splits / problem.cluster;
  int const rest_of_kv = problem.heads / group / problem.heads_kv * n_splits;
  int const most_heads = std::max<int>(int(n_ctas / kSharers), 1);  // of K and V
  int const n_sections = ceil_div(problem.heads_kv, most_heads);
  order.list = reinterpret_cast<int const*>(problem.tile_list);
  order.n_rest = problem.heads_kv * rest_of_kv;
  order.section = ceil_div(problem.heads_kv, n_sections) * rest_of_kv;
  order.last_section = ceil_div(order.n_rest, order.section) - 1;
  order.by_splits = Divisor(problem.num_splits);
  order.by_section = Divisor(order.section);
  order.by_last_section = Divisor(order.n_rest - order.last_section * order.section);
  order.by_group = Divisor(heads_of_group(problem));
}

// The same of tiles whose keys are shared.
inline void set_share_order(KernelParams& params, Config const& config,
                            ListedForwardParams const& problem) {
  ShareListing const listing = problem.share_listing();
  int const n_tiles = std::max(listing.batch * listing.tiles(), 1);
  params.order.by_group = Divisor(heads_of_group(problem));
  params.shares = {.list = reinterpret_cast<int const*>(problem.share_list),
                   .n_heads = problem.share_heads,
                   .by_tiles = Divisor(std::max(listing.tiles(), 1)),
                   .by_abreast = Divisor(listing.abreast),
                   .by_shares = Divisor(listing.n_shares),
                   .by_parts = Divisor(std::max(listing.n_shares / n_tiles, 1)),
                   .whole_tiles = ceil_div(n_tiles, listing.n_shares),
                   .rows_of_part = problem.rows_of_part(),
                   .runs_beside = problem.runs_beside,
                   .tag = problem.merges_shares ? problem.tag : 0};
}

struct Plan {
  KernelParams params;
  int64_t n_ctas;  // 0: there is nothing to launch
};

// Whether a problem has no tile.
inline bool is_empty(Config const& config, ForwardParamsWithoutPages const& problem) {
  return count_tiles(config, problem) * problem.num_splits == 0 ||
         problem.q_sequences().tensor_rows() == 0;
}

// n_resident: CTAs that run at a time.
inline cudaError_t make_plan(Plan& plan, Config const& config, ListedForwardParams const& problem,
                             int64_t n_resident, TensorMapEncoder encoder) {
  plan = {};
  if (is_empty(config, problem)) {
    return cudaSuccess;
  }
  int64_t const of_pass =
      problem.has_tile_list()
          ? problem.tile_listing().most_tiles() * problem.heads / rows_per_query(config, problem)
          : count_tiles(config, problem);
  int64_t const n_tiles = of_pass * problem.num_splits;
  if (n_tiles > kMaxTiles) {
    return cudaErrorInvalidConfiguration;
  }
  plan.params.problem = problem;
  plan.params.pages = problem.pages;
  if (KvSource const kv = problem.kv(); kv.is_paged()) {
    plan.params.by_page = Divisor(kv.pages.size);
    plan.params.k_steps = row_steps(kv.k, kv.pages);
    plan.params.v_steps = row_steps(kv.v, kv.pages);
  }
  plan.params.dropout = problem.dropout;
  if (problem.kv().is_paged() && problem.pages.number == 0) {
    plan.params.problem.sequence_lengths.longest_k =
        0;  // nothing is loaded: no map has empty extents
  }
  plan.n_ctas = config.persistent && problem.cluster == 1 ? std::min(n_tiles, n_resident) : n_tiles;
  if (problem.has_shares()) {
    plan.n_ctas = problem.n_shares;
    set_share_order(plan.params, config, problem);
  } else if (problem.has_tile_list()) {
    set_listed_order(plan.params, config, problem, n_resident);
  } else {
    set_order(plan.params, config, n_resident);
    plan.params.turns = turns_of(plan.params.order, int(plan.n_ctas));
  }
  return set_tensor_maps(plan.params, config, encoder);
}

}  // namespace pyflash::sm90
