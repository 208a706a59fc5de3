// Values by their names in Python, short forms and refusals.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cute_kernels/config.h"
#include "cute_kernels/features.h"

namespace pyflash {

// "FP16", "BF16"
char const* name(DType dtype);

// "plain", or the features joined: "right_window+softcap".
std::string name(ForwardFeatures const& features);

// Of names joined by `separator`: each.
std::vector<std::string> split(std::string_view text, char separator);

// The inverse of name. Refuses any other text.
ForwardFeatures parse_features(std::string_view text);

}  // namespace pyflash
