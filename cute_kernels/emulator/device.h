// The machine that runs this emulated kernel.
#pragma once

#include "cute_kernels/emulator/machine.h"

namespace pyflash::emulator {

inline Machine* machine = nullptr;

}  // namespace pyflash::emulator
