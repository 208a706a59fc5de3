// Into how many parts the keys of a problem are split, so that a grid of few CTAs fills the GPU: a cost model in units of
// one CTA's step over a block of keys.
//   cost(n) = waves(n) * (steps(n) + kStepsToStart) + (n > 1 ? kStepsToMerge : 0)
//   waves(n) = ceil(CTAs * n / SMs),  steps(n) = ceil(blocks / n)
// The fewest splits that cost at most a tenth more than the cheapest number of them are taken. There is one where the
// grid alone fills four SMs of five; and of several, each has at least kMinSteps blocks.
#pragma once

#include "cute_kernels/config.h"
#include "cute_kernels/params.h"

namespace pyflash {

// Blocks of keys that a Q block attends, at most.
int count_key_blocks(ForwardParams const& params, FlashForwardKernelConfig const& config);

// n_ctas: of one pass.
int choose_num_splits(int64_t n_ctas, int n_key_blocks, int n_sms);

}  // namespace pyflash
