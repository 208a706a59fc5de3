// Which problems with a variant have their tiles of keys sorted.
#pragma once

#include "cute_kernels/backward_params.h"
#include "cute_kernels/config.h"

namespace pyflash {

// Tiles start in the order of their numbers.
inline bool takes_order(FlashBackwardKernelConfig const&, BackwardParams const&) { return false; }

}  // namespace pyflash
