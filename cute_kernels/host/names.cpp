#include "cute_kernels/host/names.h"

#include <algorithm>

#include "cute_kernels/host/errors.h"

namespace pyflash {

char const* name(DType dtype) { return dtype == DType::FP16 ? "FP16" : "BF16"; }

std::string name(ForwardFeatures const& features) {
  std::string text;
  for (ForwardFeatures::Member const& feature : ForwardFeatures::kMembers) {
    if (features.*feature.value) {
      text += (text.empty() ? "" : "+") + std::string(feature.name);
    }
  }
  return text.empty() ? "plain" : text;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> names;
  for (std::string_view rest = text;;) {
    size_t const length = std::min(rest.find(separator), rest.size());
    names.emplace_back(rest.substr(0, length));
    if (length == rest.size()) {
      return names;
    }
    rest.remove_prefix(length + 1);
  }
}

ForwardFeatures parse_features(std::string_view text) {
  ForwardFeatures features;
  for (std::string const& word : split(text, '+')) {
    for (ForwardFeatures::Member const& feature : ForwardFeatures::kMembers) {
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
