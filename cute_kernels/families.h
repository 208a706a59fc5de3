// Dispatch over the kernel families.
#pragma once

#include <variant>

#include "cute_kernels/config.h"

namespace pyflash {

template <class... Overloads>
struct OfFamilies : Overloads... {
  using Overloads::operator()...;
};

// Calls the overload that takes the type of the config. NOTE: no overload takes several types, so that a family without one
// does not compile.
template <class... Overloads>
decltype(auto) visit_family(AnyConfig const& config, Overloads... overloads) {
  static_assert(sizeof...(Overloads) == std::variant_size_v<AnyConfig>,
                "expected an overload for each family");
  return std::visit(OfFamilies<Overloads...>{overloads...}, config);
}

}  // namespace pyflash
