// Arguments of an op as torch hands them to a boxed kernel, and results as it wants them back.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "cute_kernels/bindings/tensors.h"
#include "cute_kernels/bindings/torch_stable.h"
#include "cute_kernels/host/options.h"

namespace pyflash {

// Takes the arguments off the stack in the order of the schema. Owns the tensors, which views and results of it need.
class Arguments {
 public:
  explicit Arguments(StableIValue const* stack) : next_(stack) {}

  template <class T>
  T take() {
    if constexpr (std::is_same_v<T, std::string>) {
      return take_string();
    } else {
      return torch::stable::detail::to<T>(*next_++);
    }
  }

  TensorView take_tensor(char const* name) {
    tensors_.push_back(take<torch::stable::Tensor>());
    return view_of(name, tensors_.back());
  }

  std::optional<TensorView> take_optional_tensor(char const* name) {
    auto tensor = take<std::optional<torch::stable::Tensor>>();
    if (!tensor) {
      return std::nullopt;
    }
    tensors_.push_back(std::move(*tensor));
    return view_of(name, tensors_.back());
  }

  // NOTE: a package of AOTInductor has None in place of a list without elements.
  template <class T>
  std::vector<T> take_list() {
    return take<std::optional<std::vector<T>>>().value_or(std::vector<T>{});
  }

  // optional: in the schema.
  std::vector<TensorView> take_tensors(char const* name, bool optional = false) {
    using Tensors = std::vector<torch::stable::Tensor>;
    std::vector<TensorView> views;
    for (auto& tensor : optional ? take_list<torch::stable::Tensor>() : take<Tensors>()) {
      tensors_.push_back(std::move(tensor));
      views.push_back(view_of(name, tensors_.back()));
    }
    return views;
  }

  Options take_options() {
    Options options;
    for_each_option([&]<class Row>(Row const& option) {
      if constexpr (kIsTensor<Row>) {
        options.*option.member = take_optional_tensor(option.name);
      } else {
        options.*option.member = take<typename Row::Value>();
      }
    });
    return options;
  }

  // In the order in which they were taken.
  torch::stable::Tensor const& tensor(size_t i) const { return tensors_[i]; }

 private:
  // NOTE: by its handle: the headers' own conversion to std::string leaks, as of 2.13.
  std::string take_string() {
    auto const handle = take<StringHandle>();
    char const* data = nullptr;
    size_t length = 0;
    TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &data));
    TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
    std::string text(data, length);
    TORCH_ERROR_CODE_CHECK(torch_delete_string(handle));
    return text;
  }

  StableIValue const* next_;
  std::vector<torch::stable::Tensor> tensors_;
};

template <class... Results>
void put_results(StableIValue* stack, Results const&... results) {
  ((*stack++ = torch::stable::detail::from(results)), ...);
}

}  // namespace pyflash
