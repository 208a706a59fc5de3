// The forward pass on the CPU, block by block as a kernel of the same config goes: the same blocks in the same order, last
// K/V block first, the same roundings, the same softmax.
#pragma once

#include <cstdint>

#include "cute_kernels/forward.h"
#include "cute_kernels/host/cpu_variant.h"
#include "cute_kernels/host/problem.h"

namespace pyflash {

// The part of a config that applies on the CPU.
struct CpuConfig {
  DType dtype;
  int B_r;
  int B_c;
  bool optimized_softmax;  // of families that have no such field: true
};

// Refuses blocks that no kernel could have.
CpuConfig cpu_config(ConfigOf<Forward> const& config);

// Tasks, one for each Q block, head and sequence; they may run in any order and at the same time.
int64_t n_cpu_tasks(Problem const& problem, CpuConfig const& config);

// Runs the tasks [begin, end). variant: nullptr for none.
void forward_cpu(Problem const& problem, CpuConfig const& config, CpuVariant const* variant,
                 int64_t begin, int64_t end);

}  // namespace pyflash
