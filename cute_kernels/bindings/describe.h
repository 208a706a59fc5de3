// Properties of tensors that print as Python prints them, for refusals.
#pragma once

#include <ostream>

#include "cute_kernels/bindings/torch_stable.h"

namespace pyflash {

struct ShapeOf {
  torch::stable::Tensor const& tensor;
  friend std::ostream& operator<<(std::ostream& out, ShapeOf const& shape) {
    out << "(";
    for (int64_t i = 0; i < shape.tensor.dim(); ++i) {
      out << (i ? ", " : "") << shape.tensor.size(i);
    }
    return out << (shape.tensor.dim() == 1 ? ",)" : ")");
  }
};

struct DeviceOf {
  torch::stable::Tensor const& tensor;
  friend std::ostream& operator<<(std::ostream& out, DeviceOf const& of) {
    if (of.tensor.is_cuda()) {
      return out << "cuda:" << of.tensor.get_device_index();
    }
    return out << (of.tensor.is_cpu() ? "cpu" : "another kind of device");
  }
};

struct DTypeOf {
  torch::stable::Tensor const& tensor;
  friend std::ostream& operator<<(std::ostream& out, DTypeOf const& of) {
    using torch::headeronly::ScalarType;
    switch (ScalarType const type = of.tensor.scalar_type()) {
      case ScalarType::Half:
        return out << "float16";
      case ScalarType::BFloat16:
        return out << "bfloat16";
      case ScalarType::Float:
        return out << "float32";
      case ScalarType::Double:
        return out << "float64";
      case ScalarType::Int:
        return out << "int32";
      case ScalarType::Long:
        return out << "int64";
      default:
        return out << torch::headeronly::toString(type);
    }
  }
};

}  // namespace pyflash
