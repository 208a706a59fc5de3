#include "cute_kernels/host/names.h"

#include <algorithm>
#include <iterator>

#include "cute_kernels/host/errors.h"

namespace pyflash {
namespace {

struct Feature {
  char const* name;
  bool ForwardFeatures::* member;
};

constexpr Feature kFeatures[] = {
    {"right_window", &ForwardFeatures::right_window},
    {"left_window", &ForwardFeatures::left_window},
    {"predicated_head_dim", &ForwardFeatures::predicated_head_dim},
    {"softcap", &ForwardFeatures::softcap},
    {"sinks", &ForwardFeatures::sinks},
};
static_assert(std::size(kFeatures) == sizeof(ForwardFeatures), "a feature has no name");

}  // namespace

char const* name(DType dtype) { return dtype == DType::FP16 ? "FP16" : "BF16"; }

std::string name(ForwardFeatures const& features) {
  std::string text;
  for (Feature const& feature : kFeatures) {
    if (features.*feature.member) {
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
    for (Feature const& feature : kFeatures) {
      if (word == feature.name) {
        features.*feature.member = true;
      }
    }
  }
  require(name(features) == text, "'", text,
          "' are no features: expected plain, or names joined by +");
  return features;
}

}  // namespace pyflash
