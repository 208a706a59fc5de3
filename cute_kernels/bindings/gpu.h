// The ops' access to CUDA, through torch and through the kernel libraries.
#pragma once

#include <cstdint>

#include "cute_kernels/host/select.h"

namespace pyflash {

// Describes the current device, whose index this is. Refuses where no kernels are loaded: they alone know CUDA.
Gpu current_gpu(int32_t device_index);

// A cudaStream_t: torch's current one on that device.
void* current_cuda_stream(int32_t device_index);

// Runs a kernel, and what the op runs before and after it. Refuses what CUDA refuses.
void run(Kernel<Forward> const& kernel, Forward::Params const& params, void* stream);

// What the op runs before it alone.
void prepare(Kernel<Forward> const& kernel, Forward::Params const& params, void* stream);

}  // namespace pyflash
