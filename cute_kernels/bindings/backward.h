// The ops that kernels of op backward are called through.
#pragma once

#include <cstdint>

#include "cute_kernels/bindings/torch_stable.h"

namespace pyflash {

// grad_out, out, lse, grad_lse or None, q, k, v, what sets sequences apart, then options. Results are dq, dk and dv, with the
// strides of torch.empty_like.
void run_backward(StableIValue* stack, uint64_t n_arguments, uint64_t n_results);
// The same arguments with where dq, dk and dv go, a variant and what it captures before the options.
void run_variant_backward(StableIValue* stack, uint64_t n_arguments, uint64_t n_results);

}  // namespace pyflash
