// The grid of a kernel for a problem, as the kernels lay it out (sm90/plan.h, sm80/problem.h): what the slot, of an SM, that is
// busy longest has to do, and what is loaded and stored. Persistent CTAs take tiles by their number, others when they are
// free. Closed forms over a few sampled tiles: it is followed for every call without a config.
// Packed sequences, of which the host knows the longest and the sum, are taken to have lengths that spread evenly about the
// mean, up to the longest.
#pragma once

#include <cstdint>

#include "cute_kernels/config.h"
#include "cute_kernels/params.h"
#include "cute_kernels/sm90/sections.h"

namespace pyflash {

// How a kernel cuts problems into tiles.
struct GridShape {
  int d_head;
  int B_r;
  int B_c;
  int n_warpgroups;  // that skip blocks of keys each for itself
  int max_cluster;   // so many splits the kernel merges itself
  int ctas_per_sm;
  bool packs_heads;  // the query heads of a head of K and V are rows of one tile
  bool persistent;
};

GridShape grid_shape(AnyConfig const& config, int ctas_per_sm);

// What tiles take of a CTA: how many they are, their blocks of keys, and these weighed by the warpgroups that attend them.
struct Load {
  double tiles = 0;
  double steps = 0;
  double attended = 0;

  Load operator+(Load const& other) const {
    return {tiles + other.tiles, steps + other.steps, attended + other.attended};
  }
  Load operator*(double factor) const {
    return {tiles * factor, steps * factor, attended * factor};
  }
  // In about half steps: to compare loads, whatever a kernel's costs are.
  double weight() const { return 4 * tiles + steps + attended; }
};

class Grid {
 public:
  // The arguments must outlive it.
  Grid(GridShape const& shape, ForwardParams const& params, int n_sms, int num_splits);

  bool is_empty() const { return n_tiles_ == 0; }
  int cluster() const { return cluster_; }  // splits of a tile that are a cluster of CTAs

  // The rest is of a grid that is not empty.
  Load busiest() const;  // of all splits of its tiles
  // How many times slower CTAs are that share an SM: c CTAs max(1, c * share) times.
  double slowdown(double share) const;
  // Of Q and O.
  double bytes_of_rows() const {
    return 4 * mean_q_ * params_.batch * params_.heads * params_.d_head;
  }
  // Of K and V, loaded by all tiles.
  double bytes_of_tiles() const {
    double const n_tiles = static_cast<double>(n_tiles_) / (num_splits_ / cluster_);
    return n_tiles * mean_.steps * shape_.B_c * 4 * params_.d_head;
  }
  double bytes_of_memory() const;  // of all, between memory and L2

 private:
  // Extents are far below 2^30: kMaxExtent in problem.h.
  struct Lengths {
    int q;
    int k;
  };

  int count_blocks(int first, int n, Lengths const& lengths) const;
  Load tile(int block, Lengths const& lengths) const;
  Load mean_tile(int block) const;
  void set_samples();
  Load at(int block) const;
  Load longest_tile() const;
  sm90::Sections sections() const;
  Load of_busiest_slot(Load const& longest) const;
  Load of_busiest_ragged() const;
  Load of_busiest_unsorted(Load const& even) const;
  Load of_busiest_sorted() const;
  Load of_section(int64_t slot, int64_t n_tiles) const;

  static constexpr int kMaxSamples = 7;  // of a sequence's tiles

  GridShape const& shape_;
  ForwardParams const& params_;
  int n_sms_;
  int num_splits_;
  int cluster_;
  int n_heads_;  // that have tiles of their own
  int warpgroup_queries_;
  int n_queries_;   // of a tile
  double per_key_;  // blocks
  bool is_sorted_;  // with a right window, the longest tiles come first
  bool has_window_;
  bool is_ragged_;  // sequences have different lengths
  double mean_q_;
  double mean_k_;
  int n_blocks_;    // tiles of a head
  int64_t n_rest_;  // heads, batches and splits
  int64_t n_tiles_;
  int64_t n_slots_;  // for CTAs, or clusters
  int64_t n_rounds_;
  sm90::Sections sections_{};  // whose tiles are in one order
  int n_whole_ = 0;            // blocks with all queries
  int n_samples_ = 0;
  Load samples_[kMaxSamples];
  Load last_;
  Load mean_;
};

}  // namespace pyflash
