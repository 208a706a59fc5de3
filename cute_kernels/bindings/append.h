// The ops append_rows and find_slots: from their arguments on the stack to their results there.
#pragma once

#include "cute_kernels/bindings/torch_stable.h"

namespace pyflash {

// k, v, k_cache, v_cache and slots, whose shapes and dtypes fit. Whether rows were written: not where 16 bytes cannot be copied
// at once or rows lie in the caches, and on a GPU not where no kernel is loaded that does it.
void append_rows(StableIValue* stack);
// block_table, seqlens_k, cu_seqlens_q, page_size and total_q; shapes and dtypes fit. The slots, int64; none of them on a GPU
// where no kernel is loaded that finds them.
void find_slots(StableIValue* stack);

}  // namespace pyflash
