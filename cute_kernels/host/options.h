// The options of the ops, each once: a member of Options with its type and default, and a row of kOptions. Schemas, the
// decoding of arguments, checks, stand-ins of select, and the emulator's C API, memory and report are made from the
// table. pyflash/op/options.py has their meaning and their use in Python.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "cute_kernels/host/tensor_view.h"
#include "cute_kernels/params.h"

namespace pyflash {

struct Options {
  std::optional<double> softmax_scale;
  bool causal = false;
  int64_t window_left = -1;
  int64_t window_right = -1;
  int64_t attention_chunk = 0;
  double softcap = 0;
  std::string config;
  int64_t num_splits = 0;
  std::optional<TensorView> sinks;
  std::optional<TensorView> alibi_slopes;
  bool deterministic = false;
  double dropout_p = 0;
  std::optional<TensorView> dropout_state;
};

// A number, a flag or a text.
template <class T>
struct Option {
  using Value = T;
  char const* name;
  T Options::* member;
  // nullptr: any value, or a rule of check_options.
  void (*check)(char const* name, T const& value) = nullptr;
  // What a kernel receives, which the emulator reports; nullptr: nothing of this name.
  double (*used)(ListedForwardParams const& params) = nullptr;
};

// A tensor is contiguous, (heads,), float32, or what else the rule says.
struct PerHeadRule {
  bool takes_q_dtype = false;
  bool takes_batches = false;  // (batch, heads); batch: of sequences, packed ones too
};

// A tensor with a number for each head of q. check_per_head_options in checks.h checks it, because its rules depend on q.
struct PerHeadOption {
  using Value = std::optional<TensorView>;
  char const* name;
  Value Options::* member;
  PerHead ForwardParams::* values;  // where kernels read it
  PerHeadRule rule = {};
};

// A tensor that is no number for each head.
struct TensorOption {
  using Value = std::optional<TensorView>;
  char const* name;
  Value Options::* member;
};

// Whether a row of kOptions is of a tensor.
template <class Row>
inline constexpr bool kIsTensor = std::is_same_v<typename Row::Value, std::optional<TensorView>>;

void check_softmax_scale(char const* name, std::optional<double> const& scale);
void check_window(char const* name, int64_t const& size);
void check_attention_chunk(char const* name, int64_t const& size);
void check_softcap(char const* name, double const& softcap);
void check_num_splits(char const* name, int64_t const& num_splits);
void check_dropout_p(char const* name, double const& p);

constexpr double used_window(int size) { return size == kNoWindow ? -1 : size; }

// In the order of the schemas.
inline constexpr std::tuple kOptions{
    Option{"softmax_scale", &Options::softmax_scale, check_softmax_scale,
           [](ListedForwardParams const& params) -> double { return params.softmax_scale; }},
    Option{"causal", &Options::causal},  // a window_right
    Option{
        "window_left", &Options::window_left, check_window,
        [](ListedForwardParams const& params) { return used_window(params.mask().window_left); }},
    Option{
        "window_right", &Options::window_right, check_window,
        [](ListedForwardParams const& params) { return used_window(params.mask().window_right); }},
    Option{"attention_chunk", &Options::attention_chunk, check_attention_chunk,
           [](ListedForwardParams const& params) -> double { return params.mask().chunk; }},
    Option{"softcap", &Options::softcap, check_softcap,
           [](ListedForwardParams const& params) -> double { return params.softcap.cap; }},
    Option{"config", &Options::config},  // selection reads it
    Option{"num_splits", &Options::num_splits, check_num_splits,
           [](ListedForwardParams const& params) -> double { return params.num_splits; }},
    PerHeadOption{"sinks", &Options::sinks, &ForwardParams::sinks, {.takes_q_dtype = true}},
    PerHeadOption{"alibi_slopes",
                  &Options::alibi_slopes,
                  &ForwardParams::alibi_slopes,
                  {.takes_batches = true}},
    Option{"deterministic", &Options::deterministic},  // the forward pass is, whatever it says
    Option{"dropout_p", &Options::dropout_p, check_dropout_p,
           [](ListedForwardParams const& params) -> double { return params.dropout.p; }},
    TensorOption{"dropout_state", &Options::dropout_state},
};

// Calls visit(option) for each, in order.
template <class Visit>
void for_each_option(Visit&& visit) {
  std::apply([&](auto const&... options) { (visit(options), ...); }, kOptions);
}

// The same for those that are tensors.
template <class Visit>
void for_each_per_head_option(Visit&& visit) {
  for_each_option([&]<class Row>(Row const& option) {
    if constexpr (std::is_same_v<Row, PerHeadOption>) {
      visit(option);
    }
  });
}

// Every rule of one option but tensors, and those between options.
void check_options(Options const& options);

// A tensor that was checked, as kernels get it.
PerHead per_head(TensorView const& tensor);

// "float? softmax_scale=None, bool causal=False, ..."
std::string options_schema();

// Sets an option by name to a number, which is converted. False: there is no option of this name that takes one.
template <class Number>
bool set_option(Options& options, std::string_view name, Number value) {
  bool found = false;
  for_each_option([&]<class Row>(Row const& option) {
    using T = typename Row::Value;
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
