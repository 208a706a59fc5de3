// What host code asks of a config of the family.
#pragma once

#include "cute_kernels/backward.h"

namespace pyflash {

constexpr BackwardShape tile_shape(FlashBackwardSm90Config const& config) {
  return {.B_r = config.B_r,
          .B_c = config.B_c,
          .d_head = config.d_head,
          .recycles_sums = true,
          .runs_slices = true,
          .slices_are_problems = true};
}

}  // namespace pyflash
