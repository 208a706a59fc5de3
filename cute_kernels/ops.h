// Every op, and what each family's configs answer:
//   tile_shape(config) -> the Shape of its op
// In kernel libraries, by generated/launchers.h, also
//   launch_kernel(kernel, config, row, params, stream) -> a cudaError_t
//   refusal_of(config) -> a ProblemRefusal of its op: registry.h
// Without a family's overload for its config type nothing compiles that asks for one, nor without an op's definition.
#pragma once

#include <optional>
#include <type_traits>
#include <variant>

#include "cute_kernels/generated/ops.h"

namespace pyflash {

// The op of a config type.
template <class Config>
using OpOf = typename ConfigDescription<Config>::Op;

// std::nullopt: it is of another op.
template <class Op>
std::optional<ConfigOf<Op>> config_of(AnyConfig const& config) {
  return std::visit(
      [](auto const& c) -> std::optional<ConfigOf<Op>> {
        if constexpr (std::is_same_v<OpOf<std::remove_cvref_t<decltype(c)>>, Op>) {
          return c;
        } else {
          return std::nullopt;
        }
      },
      config);
}

template <class... Configs>
AnyConfig any_config(std::variant<Configs...> const& config) {
  return std::visit([](auto const& c) -> AnyConfig { return c; }, config);
}

// Calls visit(op, config as a ConfigOf that op).
template <class Visit>
decltype(auto) visit_op(AnyConfig const& config, Visit&& visit) {
  return std::visit(
      [&](auto const& c) -> decltype(auto) {
        using Op = OpOf<std::remove_cvref_t<decltype(c)>>;
        return visit(Op{}, ConfigOf<Op>(c));
      },
      config);
}

// Calls visit(op) for each.
template <class Visit>
void for_each_op(Visit&& visit) {
  [&]<class... Ops>(OpList<Ops...>) { (visit(Ops{}), ...); }(AllOps{});
}

}  // namespace pyflash
