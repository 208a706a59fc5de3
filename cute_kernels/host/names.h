// Values by their names in Python, short forms and refusals.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cute_kernels/config.h"
#include "cute_kernels/host/errors.h"

namespace pyflash {

// "FP16", "BF16"
char const* name(DType dtype);

// Splits names that are joined by `separator`.
std::vector<std::string> split(std::string_view text, char separator);

// "plain", or the features of an op joined: "right_window+softcap".
template <class Features>
std::string name(Features const& features) {
  std::string text;
  for (auto const& feature : Features::kMembers) {
    if (features.*feature.value) {
      text += (text.empty() ? "" : "+") + std::string(feature.name);
    }
  }
  return text.empty() ? "plain" : text;
}

// The inverse of name. Refuses any other text.
template <class Features>
Features parse_features(std::string_view text) {
  Features features;
  for (std::string const& word : split(text, '+')) {
    for (auto const& feature : Features::kMembers) {
      if (word == feature.name) {
        features.*feature.value = true;
      }
    }
  }
  require(name(features) == text, "'", text,
          "' are no features: expected plain, or names joined by +");
  return features;
}

}  // namespace pyflash
