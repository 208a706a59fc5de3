// What host code asks of a config of the family.
#pragma once

#include "cute_kernels/negate/negate.h"

namespace pyflash {

constexpr NegateShape tile_shape(NegateConfig const& config) { return {.rows = config.B_r}; }

}  // namespace pyflash
