// What host code asks of a config of the family.
#pragma once

#include "cute_kernels/forward.h"
#include "cute_kernels/sm90/forward/shape.h"

namespace pyflash {

constexpr TileShape tile_shape(FlashForwardSm90Config const& config) {
  return {.B_r = config.B_r,
          .B_c = config.B_c,
          .n_warpgroups = config.n_consumers,
          .packs_heads = config.pack_gqa,
          .max_cluster = sm90::max_cluster(config),
          .merges_shares = config.persistent,
          .folds_splits = sm90::folds_splits(config)};
}

constexpr bool optimized_softmax(FlashForwardSm90Config const&) { return true; }

}  // namespace pyflash
