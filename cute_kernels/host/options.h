// The options of the ops, each once: a member of Options with its type and default, and an entry of kOptions with its name
// and rule. Schemas, the decoding of arguments and the emulator's C API are made from the table. What options mean is in
// pyflash/op/ops.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "cute_kernels/host/tensor_view.h"

namespace pyflash {

struct Options {
  std::optional<double> softmax_scale;
  bool causal = false;
  int64_t window_left = -1;
  int64_t window_right = -1;
  double softcap = 0;
  std::string config;
  int64_t num_splits = 0;
  std::optional<TensorView> sinks;
};

template <class T>
struct Option {
  char const* name;
  T Options::* member;
  void (*check)(char const* name, T const& value) = nullptr;  // nullptr: any value, or a rule below
};

void check_softmax_scale(char const* name, std::optional<double> const& scale);
void check_window(char const* name, int64_t const& size);
void check_softcap(char const* name, double const& softcap);
void check_num_splits(char const* name, int64_t const& num_splits);

// In the order of the schemas.
inline constexpr std::tuple kOptions{
    Option{"softmax_scale", &Options::softmax_scale, check_softmax_scale},
    Option{"causal", &Options::causal},
    Option{"window_left", &Options::window_left, check_window},
    Option{"window_right", &Options::window_right, check_window},
    Option{"softcap", &Options::softcap, check_softcap},
    Option{"config", &Options::config},  // selection reads it
    Option{"num_splits", &Options::num_splits, check_num_splits},
    Option{"sinks", &Options::sinks},  // check_sinks in checks.h: it depends on q
};

// Calls visit(option) for each, in order.
template <class Visit>
void for_each_option(Visit&& visit) {
  std::apply([&](auto const&... options) { (visit(options), ...); }, kOptions);
}

// Every rule of one option, and those between options.
void check_options(Options const& options);

// "float? softmax_scale=None, bool causal=False, ..."
std::string options_schema();

// Sets an option by name to a number, which is converted. False: there is no option of this name that takes one.
template <class Number>
bool set_option(Options& options, std::string_view name, Number value) {
  bool found = false;
  for_each_option([&]<class T>(Option<T> const& option) {
    constexpr bool kTakesFloats =
        std::is_same_v<T, double> || std::is_same_v<T, std::optional<double>>;
    constexpr bool kTakes =
        kTakesFloats || (std::is_integral_v<T> && !std::is_floating_point_v<Number>);
    if constexpr (kTakes) {
      if (name == option.name) {
        options.*option.member = static_cast<std::conditional_t<kTakesFloats, double, T>>(value);
        found = true;
      }
    }
  });
  return found;
}

}  // namespace pyflash
