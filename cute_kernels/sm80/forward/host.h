// What host code asks of a config of the family.
#pragma once

#include "cute_kernels/forward.h"

namespace pyflash {

constexpr TileShape tile_shape(FlashForwardKernelConfig const& config) {
  return {.B_r = config.B_r, .B_c = config.B_c};
}

constexpr bool optimized_softmax(FlashForwardKernelConfig const& config) {
  return config.optimized_softmax;
}

}  // namespace pyflash
