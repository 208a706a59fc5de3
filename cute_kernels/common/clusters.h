// Clusters of CTAs that share a tile, a split of the keys each, and merge them.
#pragma once

#include <cstdint>

namespace pyflash {

inline constexpr int kPortableCluster = 8;  // CTAs; larger clusters are not launched on every GPU

// CTAs of a cluster: all splits of a tile, where those of all tiles run at a time, or 1. n_tiles: of one pass.
constexpr int cluster_of(int num_splits, int max_cluster, int64_t n_tiles, int64_t n_resident) {
  return num_splits <= max_cluster && n_tiles * num_splits <= n_resident ? num_splits : 1;
}

}  // namespace pyflash
