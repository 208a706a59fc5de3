// ForwardParams by the names of its fields, for callers that do not share its layout.
#pragma once

#include <string_view>

#include "cute_kernels/params.h"

namespace pyflash::emulator {

// Sets a number, or a pointer given as one: "batch", "q", "q_strides.row". False: there is no such field.
bool set_param(ForwardParams& params, std::string_view name, int64_t value);
bool set_param(ForwardParams& params, std::string_view name, double value);

}  // namespace pyflash::emulator
