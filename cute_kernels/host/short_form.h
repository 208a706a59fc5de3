// The text form of a config, as pyflash.config prints it:
//   (FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax
#pragma once

#include <string>
#include <string_view>

#include "cute_kernels/config.h"

namespace pyflash {

char const* name(DType dtype);

std::string short_form(FlashForwardKernelConfig const& config);

// Refuses text that is no short form, naming the part that was not understood. Whether the config
// makes sense is not looked at, except that the sizes of its tile are at least 1.
FlashForwardKernelConfig parse_short_form(std::string_view text);

}  // namespace pyflash
