// A thread of a warpgroup, read anew wherever it is needed: the loops have no register for it.
#pragma once

#include <cute/config.hpp>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/shape.h"

namespace pyflash::sm90::backward {

// NOTE: by its bits, since a division of a signed number takes four instructions more.
CUTE_DEVICE int fresh_thread() { return device::fresh_thread_idx() & (kWarpgroup - 1); }
CUTE_DEVICE int fresh_lane() { return device::fresh_thread_idx() & 31; }

}  // namespace pyflash::sm90::backward
