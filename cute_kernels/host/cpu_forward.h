// The forward pass on the CPU, block by block as a kernel of the same config goes: the same blocks
// in the same order, last K/V block first, the same roundings, the same softmax. What a config says
// of copies, warps and registers changes nothing here.
#pragma once

#include <cstdint>

#include "cute_kernels/config.h"
#include "cute_kernels/params.h"

namespace pyflash {

// Tasks, one for each Q block, head and sequence; they may run in any order and at the same time.
int64_t n_cpu_tasks(ForwardParams const& params, FlashForwardKernelConfig const& config);

// Runs the tasks [begin, end).
void forward_cpu(ForwardParams const& params, FlashForwardKernelConfig const& config, int64_t begin,
                 int64_t end);

}  // namespace pyflash
