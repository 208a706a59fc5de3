// A tensor in host code: address, device and layout. bindings/ converts torch's tensors.
#pragma once

#include <cstdint>
#include <ostream>
#include <string_view>

namespace pyflash {

enum class ElementType {
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt64,
  kBool,
  kFloat8E4M3,
  kOther
};

// As torch names it: "float16".
std::ostream& operator<<(std::ostream& out, ElementType type);
ElementType element_type(std::string_view name);

struct Device {
  enum class Kind { kCpu, kCuda, kOther };

  Kind kind;
  int index;  // 0 for the CPU

  friend bool operator==(Device const&, Device const&) = default;
};

// As torch names it: "cuda:0".
std::ostream& operator<<(std::ostream& out, Device device);

// Does not own anything. Sizes and strides, in elements, outlive it.
struct TensorView {
  char const* name;  // of the op's argument
  void const* data;
  int rank;
  int64_t const* sizes;
  int64_t const* strides;
  ElementType dtype;
  Device device;
};

// Prints the sizes as Python prints a tuple.
struct ShapeOf {
  TensorView const& tensor;
};
std::ostream& operator<<(std::ostream& out, ShapeOf shape);

}  // namespace pyflash
