// The text form of a config of any family, as pyflash.config prints it:
//   (FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax
// Read and printed by the family's ConfigDescription, which is emitted from the fields' description in Python.
#pragma once

#include <string>
#include <string_view>

#include "cute_kernels/host/errors.h"
#include "cute_kernels/ops.h"

namespace pyflash {

std::string short_form(AnyConfig const& config);

// Refuses text that is not a short form, naming the part that was not understood. Rules are not checked, except that each
// number is at least what its field can hold.
AnyConfig parse_short_form(std::string_view text);

// Refuses that of another op too.
template <class Op>
ConfigOf<Op> parse_short_form_of(std::string_view text) {
  auto const config = config_of<Op>(parse_short_form(text));
  require(config.has_value(), "config '", text, "' is of another op: expected one of ", Op::kName);
  return *config;
}

}  // namespace pyflash
