// The op append_rows: from its arguments on the stack to its result there.
#pragma once

#include "cute_kernels/bindings/torch_stable.h"

namespace pyflash {

// k, v, k_cache, v_cache and slots, whose shapes and dtypes fit. Whether rows were written: not where 16 bytes cannot be copied
// at once or rows lie in the caches, and on a GPU not where no kernel is loaded that does it.
void append_rows(StableIValue* stack);

}  // namespace pyflash
