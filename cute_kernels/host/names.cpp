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

ForwardFeatures features_named(std::string_view text) {
  ForwardFeatures features;
  if (text == name(features)) {
    return features;
  }
  while (true) {
    size_t const length = std::min(text.find('+'), text.size());
    auto const known = std::find_if(std::begin(kFeatures), std::end(kFeatures), [&](auto& feature) {
      return feature.name == text.substr(0, length);
    });
    require(known != std::end(kFeatures), "unknown feature '", text.substr(0, length), "'");
    features.*known->member = true;
    if (length == text.size()) {
      return features;
    }
    text.remove_prefix(length + 1);
  }
}

}  // namespace pyflash
