// The operations of a variant's programs, by their names in pyflash/variant/bytecode.py: "+.f32".
#pragma once

#include <string_view>

#include "cute_kernels/host/variant_program.h"

namespace pyflash {

struct NamedOperation {
  Operation operation;
  int arity;
};

// Refuses a name that no operation has.
NamedOperation find_operation(std::string_view name);

}  // namespace pyflash
