// What host code asks of a config of the family.
#pragma once

#include "cute_kernels/backward.h"
#include "cute_kernels/common/integers.h"

namespace pyflash {

// NOTE: the workspace has whole pieces of queries for each block.
constexpr BackwardShape tile_shape(FlashBackwardKernelConfig const& config) {
  return {.B_r = larger(config.B_r, kQueriesOfPiece),
          .B_c = config.B_c,
          .d_head = config.d_head,
          .lanes_are_neighbours = true,
          .divides_groups = true,
          .runs_slices = true,
          .slowness = 2};
}

}  // namespace pyflash
