// The op merge_states: from its arguments on the stack to its result there.
#pragma once

#include "cute_kernels/bindings/torch_stable.h"

namespace pyflash {

// outs, lses, out and lse, whose shapes, dtypes and devices fit; lses are float32. Whether they were merged: not where outs are
// too many or cannot be read 16 bytes at once, or share memory with out, and on a GPU not where no kernel is loaded that does it.
void merge_states(StableIValue* stack);

}  // namespace pyflash
