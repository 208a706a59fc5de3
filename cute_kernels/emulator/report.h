// The report as JSON text.
#pragma once

#include <string>

#include "cute_kernels/emulator/emulator.h"

namespace pyflash::emulator {

// {"sites": {site: {path: {...}}}, "counts": {...}, "findings": [...]}; what did not happen at a site is left out.
std::string report(Emulator const& emulator);

}  // namespace pyflash::emulator
