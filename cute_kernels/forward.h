// The op `forward`: O and lse of attention. Of a config of its families the CPU path also asks
//   optimized_softmax(config) -> whether row maxima are of unscaled scores
#pragma once

#include <array>

#include "cute_kernels/config.h"
#include "cute_kernels/features.h"
#include "cute_kernels/op.h"
#include "cute_kernels/params.h"

namespace pyflash {

// How a config cuts a problem into tiles: what selection, splits and the model of time ask of it.
struct TileShape {
  int B_r;                   // Q rows per CTA
  int B_c;                   // K/V rows per block
  int n_warpgroups = 1;      // that skip blocks of keys each for itself
  bool packs_heads = false;  // the query heads of a head of K and V are rows of one tile
  int max_cluster = 1;       // up to so many splits of a tile may be a cluster of CTAs

  // The queries of a tile, whose rows may be of several heads.
  constexpr int n_queries(ForwardParams const& params) const {
    int const group = packs_heads && params.heads_kv > 0 ? params.heads / params.heads_kv : 1;
    return n_warpgroups * larger(B_r / n_warpgroups / larger(group, 1), 1);
  }
};

// Whether splits leave partial results, which another kernel merges into o and lse.
constexpr bool leaves_parts(ListedForwardParams const& params) {
  return params.num_splits > params.cluster;
}

// Merges what the splits left into o and lse. Returns a cudaError_t. In kernel libraries alone: merge_splits.cu.
int merge_splits(ListedForwardParams const& params, DType dtype, void* stream);

// Lists the tiles where sequences, packed, may have such different lengths that it makes a difference: where those of the
// longest are more tiles, or blocks of keys, than all have. With kernels that take lists.
constexpr void list_uneven_tiles(ListedForwardParams& params, TileShape const& shape) {
  Sequences const q = params.q_sequences(), k = params.kv().sequences;
  ListedForwardParams listed = params;
  listed.tile_queries = shape.n_queries(params);
  listed.tile_keys = shape.B_c;
  auto const is_uneven = [&](Sequences const& sequences, int block) {
    int64_t const most = int64_t(sequences.total) + int64_t(params.batch) * (block - 1);
    return int64_t(params.batch) * sequences.most_blocks(block) > most / block;
  };
  bool const differ = is_uneven(q, listed.tile_queries) || is_uneven(k, listed.tile_keys);
  if (q.is_packed() && k.is_packed() && differ &&
      listed.tile_listing().most_tiles() <= TileListing::kMostTiles) {
    params = listed;
  }
}

// Makes the list of tiles. Returns a cudaError_t. In kernel libraries alone: list_tiles.cu.
int list_tiles(ListedForwardParams const& params, DType dtype, void* stream);

constexpr bool has_tile_list(ListedForwardParams const& params) { return params.has_tile_list(); }

struct Forward {
  static constexpr char const* kName = "forward";
  using Params = ListedForwardParams;
  using Features = ForwardFeatures;
  using Shape = TileShape;

  static constexpr std::array kPhases = {
      Phase<Params>{.is_needed = has_tile_list, .launch = list_tiles}, Phase<Params>{},
      Phase<Params>{.is_needed = leaves_parts, .launch = merge_splits}};

  static constexpr std::array<Buffer<Params>, 3> workspace(Params const& params) {
    int64_t const n_rows = leaves_parts(params) ? params.num_splits * params.lse_strides.split : 0;
    return {{{&Params::tile_list, params.has_tile_list() ? params.tile_listing().size() : 0},
             {&Params::o_partial, n_rows * params.d_head},
             {&Params::lse_partial, n_rows}}};
  }
  static constexpr char const* kWorkspace = "the partial results of num_splits, and lists of tiles";
};

}  // namespace pyflash
