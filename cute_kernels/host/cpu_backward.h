// The gradients of q, k and v on the CPU, in fp32 but for the inputs and the results.
#pragma once

#include <cstdint>

#include "cute_kernels/backward_params.h"

namespace pyflash {

// One task for each head of q and sequence; they may run in any order and at the same time, and the results have the same bits.
int64_t n_cpu_backward_tasks(BackwardParams const& params);

// The floats of the sums that heads of q which share a head of k and v leave for sum_heads_cpu; 0: they share none.
int64_t n_cpu_backward_sums(BackwardParams const& params);

// Runs the tasks [begin, end). Writes dq and, where no heads are shared, dk and dv. sums: of n_cpu_backward_sums floats.
void backward_cpu(BackwardParams const& params, DType dtype, float* sums, int64_t begin,
                  int64_t end);

// After all tasks, where heads are shared: dk and dv of the tasks [begin, end), one for each head of k and sequence.
int64_t n_cpu_sum_tasks(BackwardParams const& params);
void sum_heads_cpu(BackwardParams const& params, DType dtype, float const* sums, int64_t begin,
                   int64_t end);

}  // namespace pyflash
