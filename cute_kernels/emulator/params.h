// The parameters of a kernel, and the memory that they point to.
#pragma once

#include <string>

#include "cute_kernels/emulator/emulator.h"
#include "cute_kernels/params.h"

namespace pyflash::emulator {

// Adds every tensor that params point to, with the elements that extents and strides give it; the pointers become the
// addresses that the kernel computes with.
void map_memory(ListedForwardParams& params, Emulator& emulator);

// {"batch": 1, ...}: extents, options, and num_splits. A window that cuts nothing is -1.
std::string numbers_json(ListedForwardParams const& params);

}  // namespace pyflash::emulator
