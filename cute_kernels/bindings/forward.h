// The ops fwd, fwd_varlen, fwd_paged, fwd_variant and fwd_paged_variant, and those of schedules: from their arguments on the stack to their results
// there.
#pragma once

#include "cute_kernels/bindings/torch_stable.h"

namespace pyflash {

// q, k and v; for fwd_varlen, which is packed, what sets its sequences apart; options.
void forward(StableIValue* stack, bool packed);
// q, and k and v in pages; options; into: out and lse, which are written, and no results.
void forward_paged(StableIValue* stack, bool into);
// The arguments of fwd_paged but q; into: the config that runs it and the ints of its list of shares.
void plan_schedule(StableIValue* stack);
// The same after the list, which is made.
void fill_schedule(StableIValue* stack);
// q, k and v; a variant and what it captures; what sets sequences apart, or nothing; options.
void forward_variant(StableIValue* stack);
// The same over pages.
void forward_paged_variant(StableIValue* stack);

}  // namespace pyflash
