// What is checked of cu_seqlens_q, cu_seqlens_k, max_seqlen_q and max_seqlen_k.
#pragma once

#include "cute_kernels/bindings/checks.h"
#include "cute_kernels/bindings/tensor_checks.h"

namespace pyflash {

// Returns the number of sequences. Devices have been looked at. What cu_seqlens hold is checked on the CPU only: reading
// them on a GPU would be waiting for it.
int64_t check_packing(Packing const& packing, Input const& q, Input const& k);

}  // namespace pyflash
