// Attention sinks as a kernel reads them.
#pragma once

#include "cute_kernels/per_head.h"

namespace pyflash {

// The sink of a row of a head, fp32.
template <class Element>
CUTE_DEVICE float load_sink(PerHead const& sinks, int head, int row) {
  return load_per_head<Element>(sinks, /*batch=*/0, head, row);
}

}  // namespace pyflash
