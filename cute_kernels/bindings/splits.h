// Into how many parts the keys of a problem are split, so that a grid of few CTAs fills the GPU. The rule is a cost model
// whose unit is one CTA's step over a block of keys:
//   cost(n) = waves(n) * (steps(n) + kStepsToStart) + (n > 1 ? kStepsToMerge : 0)
//   waves(n) = ceil(CTAs * n / SMs),  steps(n) = ceil(blocks / n)
// The cheapest number of splits is taken, the fewest where several are, of those that make at most kMaxWaves and leave
// every split kMinSteps blocks or more. A grid that fills four SMs of five without is not split.
#pragma once

#include "cute_kernels/config.h"
#include "cute_kernels/params.h"

namespace pyflash {

// Blocks of keys that a Q block attends, at most.
int count_key_blocks(ForwardParams const& params, FlashForwardKernelConfig const& config);

// n_ctas: of one pass.
int choose_num_splits(int64_t n_ctas, int n_key_blocks, int n_sms);

}  // namespace pyflash
