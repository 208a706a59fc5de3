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
  int B_r;                     // Q rows per CTA
  int B_c;                     // K/V rows per block
  int n_warpgroups = 1;        // that skip blocks of keys each for itself
  bool packs_heads = false;    // the query heads of a head of K and V are rows of one tile
  int max_cluster = 1;         // up to so many splits of a tile may be a cluster of CTAs
  bool merges_shares = false;  // its CTAs can find their shares of the keys and merge the parts
  bool folds_splits = false;   // they can work through all splits at fixed keys of a tile

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

// So many heads abreast that their rows of a key are a piece of memory that is long enough, and few of n CTAs are left out.
constexpr int heads_abreast(int heads, int n) {
  constexpr int kMost = 8, kOfCtas = 50;
  int abreast = kMost;
  while (abreast > 1 && (heads % abreast != 0 || n % abreast * kOfCtas > n)) {
    --abreast;
  }
  return abreast;
}

// Up to so many sequences and rows CTAs find their shares themselves and merge the parts. Beyond, both take each CTA longer, and a
// list and another kernel do it.
inline constexpr int kMostSequencesToFind = 256;
inline constexpr int kMostRowsToMerge = 16;

// Gives each of n CTAs an equal share of the blocks of keys.
constexpr void share_keys(ListedForwardParams& params, TileShape const& shape, int n) {
  params.num_splits = params.cluster = 1;
  params.share_heads = shape.packs_heads ? params.heads_kv : params.heads;
  params.heads_abreast = heads_abreast(params.share_heads, n);
  params.n_shares = n - n % params.heads_abreast;
  params.share_queries = shape.n_queries(params);
  params.share_keys = shape.B_c;
  params.merges_shares = shape.merges_shares && params.batch <= kMostSequencesToFind &&
                         params.rows_of_part() <= kMostRowsToMerge;
}

// Why a problem cannot have equal shares in tiles of this shape; nullptr: it can.
constexpr char const* refusal_of_shares(ListedForwardParams params, TileShape const& shape) {
  share_keys(params, shape, 1);
  if (shape.n_warpgroups != 1 || params.q_sequences().longest > params.share_queries) {
    return "its keys are shared by sequences, whose queries are more than a tile's of one "
           "warpgroup";
  }
  if (!params.share_listing().is_countable()) {
    return "its keys are shared by sequences, and their blocks are more than 2^29";
  }
  return nullptr;
}

constexpr bool has_shares(ListedForwardParams const& params) { return params.has_shares(); }
constexpr bool lists_shares(ListedForwardParams const& params) {
  return params.has_shares() && !params.is_share_list_given && !params.merges_shares;
}
constexpr bool leaves_shares_to_merge(ListedForwardParams const& params) {
  return params.has_shares() && !params.merges_shares;
}

// Makes the list of shares; merges the parts that they left into o and lse. Return a cudaError_t. In kernel libraries alone:
// shares.cu.
int list_shares(ListedForwardParams const& params, DType dtype, void* stream);
int merge_shares(ListedForwardParams const& params, DType dtype, void* stream);

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
  // NOTE: how many keys are in pages, the device alone knows.
  bool const differ =
      is_uneven(q, listed.tile_queries) || (k.is_packed() && is_uneven(k, listed.tile_keys));
  if (q.is_packed() && (k.is_packed() || params.kv().is_paged()) && differ &&
      listed.tile_listing().most_tiles() <= TileListing::kMostTiles) {
    params = listed;
  }
}

// Makes the list of tiles, and that of the shares of the kernel that runs beside. Returns a cudaError_t. In kernel libraries
// alone: list_tiles.cu.
int list_tiles(ListedForwardParams const& params, DType dtype, void* stream);

constexpr bool has_tile_list(ListedForwardParams const& params) { return params.has_tile_list(); }

struct Forward {
  static constexpr char const* kName = "forward";
  using Params = ListedForwardParams;
  using Features = ForwardFeatures;
  using Shape = TileShape;

  static constexpr std::array kPhases = {
      Phase<Params>{.is_needed = has_tile_list, .launch = list_tiles},
      Phase<Params>{.is_needed = lists_shares, .launch = list_shares}, Phase<Params>{},
      Phase<Params>{.is_needed = leaves_parts, .launch = merge_splits},
      Phase<Params>{.is_needed = leaves_shares_to_merge, .launch = merge_shares}};

  static constexpr std::array<Buffer<Params>, 4> workspace(Params const& params) {
    int64_t const n_rows = params.has_shares()
                               ? int64_t(2) * params.n_shares * params.rows_of_part()
                           : leaves_parts(params) ? params.num_splits * params.lse_strides.split
                                                  : 0;
    bool const are_tagged = params.merges_shares;
    return {{{&Params::tile_list, params.has_tile_list() ? params.tile_listing().size() : 0},
             {&Params::share_list, lists_shares(params) ? params.share_listing().size() : 0},
             {&Params::o_partial, n_rows * params.d_head * (are_tagged ? 2 : 1)},
             {&Params::lse_partial, n_rows * (are_tagged ? 4 : 1)}}};
  }
  static constexpr char const* kWorkspace =
      "the partial results of num_splits, and lists of tiles or shares";
};

}  // namespace pyflash
