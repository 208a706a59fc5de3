#include "cute_kernels/host/options.h"

#include <cmath>

#include "cute_kernels/host/errors.h"
#include "cute_kernels/params.h"

namespace pyflash {
namespace {

// A schema's words for the type and the default value of an option.
char const* schema_type(bool) { return "bool"; }
char const* schema_type(int64_t) { return "int"; }
char const* schema_type(double) { return "float"; }
char const* schema_type(std::string const&) { return "str"; }
char const* schema_type(std::optional<double> const&) { return "float?"; }
char const* schema_type(std::optional<TensorView> const&) { return "Tensor?"; }

std::string schema_default(bool value) { return value ? "True" : "False"; }
std::string schema_default(int64_t value) { return std::to_string(value); }
std::string schema_default(double value) { return std::to_string(value); }
std::string schema_default(std::string const& value) { return "\"" + value + "\""; }
template <class T>
std::string schema_default(std::optional<T> const&) {
  return "None";
}

}  // namespace

std::string options_schema() {
  Options const defaults;
  std::string schema;
  for_each_option([&](auto const& option) {
    auto const& value = defaults.*option.member;
    schema += sentence(schema.empty() ? "" : ", ", schema_type(value), " ", option.name, "=",
                       schema_default(value));
  });
  return schema;
}

PerHead per_head(TensorView const& tensor) {
  return {.data = tensor.data,
          .strides = {.batch = tensor.rank > 1 ? tensor.strides[0] : 0, .row = 0, .head = 1},
          .is_fp32 = tensor.dtype == ElementType::kFloat32};
}

void check_softmax_scale(char const* name, std::optional<double> const& scale) {
  float const used = static_cast<float>(scale.value_or(1));
  require(std::isfinite(used) && used > 0, name, " = ", scale.value_or(1),
          ": expected a finite number above 0");
}

void check_window(char const* name, int64_t const& size) {
  require(size >= -1, name, " = ", size, ": expected a number of keys, or -1 for no limit");
}

void check_attention_chunk(char const* name, int64_t const& size) {
  require(size >= 0, name, " = ", size, ": expected a number of keys, or 0 for no chunks");
}

void check_softcap(char const* name, double const& softcap) {
  float const cap = static_cast<float>(softcap);
  require(std::isfinite(cap) && cap >= 0, name, " = ", softcap,
          ": expected a finite number above 0, or 0 for no cap");
}

void check_num_splits(char const* name, int64_t const& num_splits) {
  require(num_splits >= kSplitsAtFixedKeys && num_splits <= kMaxSplits, name, " = ", num_splits,
          ": expected a number from 1 to ", kMaxSplits, ", 0 to have it chosen, or ",
          kSplitsByLength, " for as many as each sequence's length asks for");
}

void check_dropout_p(char const* name, double const& p) {
  require(p >= 0 && static_cast<float>(p) < 1, name, " = ", p,
          ": expected a number from 0 on and below 1");
}

void check_options(Options const& options) {
  for_each_option([&]<class Row>(Row const& option) {
    if constexpr (!kIsTensor<Row>) {
      if (option.check != nullptr) {
        option.check(option.name, options.*option.member);
      }
    }
  });
  require(!options.causal || options.window_right <= 0,
          "causal = True sets window_right = 0, which came as ", options.window_right,
          ": expected -1 or 0");
  require(!options.alibi_slopes || options.softcap == 0,
          "alibi_slopes came with softcap = ", options.softcap, ": expected one of them");
}

}  // namespace pyflash
