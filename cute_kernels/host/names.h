// Values by their names in Python, short forms and refusals.
#pragma once

#include <string>

#include "cute_kernels/config.h"
#include "cute_kernels/features.h"

namespace pyflash {

// "FP16", "BF16"
char const* name(DType dtype);

// "plain", or the features joined: "right_window+softcap".
std::string name(ForwardFeatures const& features);

}  // namespace pyflash
