#include "cute_kernels/host/tensor_view.h"

#include <algorithm>
#include <iterator>

namespace pyflash {
namespace {

// In the order of ElementType.
constexpr std::string_view kNames[] = {
    "float16", "bfloat16", "float32", "float64", "int8",          "int16",           "int32",
    "int64",   "uint8",    "uint64",  "bool",    "float8_e4m3fn", "of another dtype"};
static_assert(std::size(kNames) == static_cast<size_t>(ElementType::kOther) + 1);

}  // namespace

std::ostream& operator<<(std::ostream& out, ElementType type) {
  return out << kNames[static_cast<size_t>(type)];
}

ElementType element_type(std::string_view name) {
  auto const index = std::find(std::begin(kNames), std::end(kNames) - 1, name) - kNames;
  return static_cast<ElementType>(index);
}

std::ostream& operator<<(std::ostream& out, Device device) {
  switch (device.kind) {
    case Device::Kind::kCpu:
      return out << "cpu";
    case Device::Kind::kCuda:
      return out << "cuda:" << device.index;
    default:
      return out << "another kind of device";
  }
}

std::ostream& operator<<(std::ostream& out, ShapeOf shape) {
  out << "(";
  for (int i = 0; i < shape.tensor.rank; ++i) {
    out << (i ? ", " : "") << shape.tensor.sizes[i];
  }
  return out << (shape.tensor.rank == 1 ? ",)" : ")");
}

}  // namespace pyflash
