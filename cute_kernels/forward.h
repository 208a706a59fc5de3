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
};

// Whether splits leave partial results, which another kernel merges into o and lse.
constexpr bool leaves_parts(ForwardParams const& params) {
  return params.num_splits > params.cluster;
}

// Merges what the splits left into o and lse. Returns a cudaError_t. In kernel libraries alone: merge_splits.cu.
int merge_splits(ForwardParams const& params, DType dtype, void* stream);

struct Forward {
  static constexpr char const* kName = "forward";
  using Params = ForwardParams;
  using Features = ForwardFeatures;
  using Shape = TileShape;

  static constexpr std::array kPhases = {
      Phase<ForwardParams>{},
      Phase<ForwardParams>{.is_needed = leaves_parts, .launch = merge_splits}};

  static constexpr std::array<Buffer<ForwardParams>, 2> workspace(ForwardParams const& params) {
    int64_t const n_rows = leaves_parts(params) ? params.num_splits * params.lse_strides.split : 0;
    return {{{&ForwardParams::o_partial, n_rows * params.d_head},
             {&ForwardParams::lse_partial, n_rows}}};
  }
  static constexpr char const* kWorkspace = "the partial results of num_splits";
};

}  // namespace pyflash
