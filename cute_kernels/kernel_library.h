// What a kernel library offers besides its rows; defined in kernel_library.cu, named by the emitted config map.
#pragma once

#include "cute_kernels/registry.h"

namespace pyflash {

// Of the current device: compute capability as major * 10 + minor, number of multiprocessors. Returns a cudaError_t.
int device_properties(int* sm_arch, int* n_sms);

char const* error_string(int error);

// Merges the partial results of num_splits > 1 into o and lse; launched after the kernel that wrote them. Returns a
// cudaError_t.
int merge_splits(ForwardParams const& params, DType dtype, void* stream);

// As KernelLibrary says.
int launch(void const* kernel, ConfigMapRow const& row, ForwardParams const& params, void* stream);
void describe(ConfigMapRow& row);
int load_cubin(void const* image, char const* symbol, void const** kernel);

}  // namespace pyflash
