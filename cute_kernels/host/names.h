// Values by their names in Python, short forms and refusals.
#pragma once

#include <string>
#include <string_view>

#include "cute_kernels/config.h"
#include "cute_kernels/features.h"

namespace pyflash {

// "FP16", "BF16"
char const* name(DType dtype);

// "plain", or the features joined: "right_window+softcap".
std::string name(ForwardFeatures const& features);

// The inverse. Refuses a word that is no feature.
ForwardFeatures features_named(std::string_view text);

}  // namespace pyflash
