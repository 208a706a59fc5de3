// The grid of a kernel for a problem: how many tiles there are, how many run at a time, the blocks of keys of the mean and of
// the longest tile, and what crosses memory. Closed forms over a few sampled tiles: it is made for every call without a config.
// Packed sequences, of which the host knows the longest and the sum, are taken to have lengths that spread evenly about the
// mean, up to the longest.
#pragma once

#include <cstdint>

#include "cute_kernels/forward.h"
#include "cute_kernels/host/problem.h"

namespace pyflash {

struct GridShape : TileShape {
  int ctas_per_sm;
};

// The shape of a config, built or not.
GridShape grid_shape(ConfigOf<Forward> const& config, int ctas_per_sm);

// What a CTA does for a tile, or for its split of one.
struct TileWork {
  double tiles = 0;     // 0 for one beyond the end of its sequence
  double steps = 0;     // blocks of keys
  double attended = 0;  // the same, each weighed by the share of warpgroups that attend it
};

struct Grid {
  int64_t
      n_tiles;  // of all splits, as if all sequences were the longest; those of a cluster of CTAs are one
  int64_t n_slots;  // tiles that run at a time
  int cluster;      // CTAs
  TileWork mean;
  TileWork longest;
  double megabytes;          // of Q, O, K and V, once
  double partial_megabytes;  // that splits leave, and another kernel merges: written and read
};

Grid make_grid(GridShape const& shape, Problem const& problem, int n_sms, int num_splits);

}  // namespace pyflash
