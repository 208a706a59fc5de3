#include "cute_kernels/bindings/checks.h"

#include <cmath>
#include <ostream>

#include "cute_kernels/bindings/errors.h"

namespace pyflash {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Device;
using torch::stable::Tensor;

constexpr int kBatch = 0, kRow = 1, kHead = 2, kColumn = 3;  // dimensions of q, k and v
constexpr int kVectorBytes = 16;                             // kernels read 16 bytes at a time
constexpr int kElementBytes = 2;
constexpr int64_t kMaxExtent = int64_t(1) << 30;  // so that a block more is still an int

struct NamedTensor {
  char const* name;
  Tensor const& tensor;
};

// Views that print.
struct ShapeOf {
  Tensor const& tensor;
  friend std::ostream& operator<<(std::ostream& out, ShapeOf const& shape) {
    out << "(";
    for (int64_t i = 0; i < shape.tensor.dim(); ++i) {
      out << (i ? ", " : "") << shape.tensor.size(i);
    }
    return out << ")";
  }
};
struct DeviceOf {
  Tensor const& tensor;
  friend std::ostream& operator<<(std::ostream& out, DeviceOf const& of) {
    Device const device = of.tensor.device();
    if (device.is_cuda()) {
      return out << "cuda:" << device.index();
    }
    return out << (device.is_cpu() ? "cpu" : "another kind of device");
  }
};
struct DTypeOf {
  Tensor const& tensor;
  friend std::ostream& operator<<(std::ostream& out, DTypeOf const& of) {
    switch (ScalarType const type = of.tensor.scalar_type()) {
      case ScalarType::Half:
        return out << "float16";
      case ScalarType::BFloat16:
        return out << "bfloat16";
      case ScalarType::Float:
        return out << "float32";
      case ScalarType::Double:
        return out << "float64";
      default:
        return out << torch::headeronly::toString(type);
    }
  }
};

void check_devices(Tensor const& q, NamedTensor const (&others)[2]) {
  for (auto const& [name, tensor] : others) {
    require(tensor.device() == q.device(), name, " is on ", DeviceOf{tensor}, ": expected ",
            DeviceOf{q}, ", where q is");
  }
}

DType check_dtypes(Tensor const& q, NamedTensor const (&others)[2]) {
  ScalarType const dtype = q.scalar_type();
  require(dtype == ScalarType::Half || dtype == ScalarType::BFloat16, "q is ", DTypeOf{q},
          ": expected float16 or bfloat16");
  for (auto const& [name, tensor] : others) {
    require(tensor.scalar_type() == dtype, name, " is ", DTypeOf{tensor}, ": expected ", DTypeOf{q},
            " as q");
  }
  return dtype == ScalarType::Half ? DType::FP16 : DType::BF16;
}

void check_shapes(NamedTensor const (&tensors)[3]) {
  char const* const axes[] = {"batch", "seqlen", "heads", "d_head"};
  for (auto const& [name, tensor] : tensors) {
    require(tensor.dim() == 4, name, " has shape ", ShapeOf{tensor},
            ": expected 4 dimensions, (batch, seqlen, heads, d_head)");
  }
  Tensor const& q = tensors[0].tensor;
  Tensor const& k = tensors[1].tensor;
  Tensor const& v = tensors[2].tensor;
  for (int axis : {kBatch, kHead, kColumn}) {
    require(k.size(axis) == q.size(axis), "k has shape ", ShapeOf{k}, ": expected ", axes[axis],
            " ", q.size(axis), " as q",
            axis == kHead ? "; fewer heads of k and v than of q are not supported yet" : "");
  }
  for (int axis : {kBatch, kRow, kHead, kColumn}) {
    require(v.size(axis) == k.size(axis), "v has shape ", ShapeOf{v}, ": expected ", axes[axis],
            " ", k.size(axis), " as k");
  }
  for (auto const& [name, tensor] : tensors) {
    for (int axis : {kBatch, kRow, kHead}) {
      require(tensor.size(axis) <= kMaxExtent, name, " has ", axes[axis], " ", tensor.size(axis),
              ": expected at most ", kMaxExtent);
    }
  }
  require(q.size(kBatch) * q.size(kHead) <= kMaxExtent, "q has shape ", ShapeOf{q},
          ": expected at most ", kMaxExtent, " for batch times heads");
}

// NOTE: the stride of a dimension of size 1 says nothing and can be anything.
void check_memory(NamedTensor const& named) {
  auto const& [name, tensor] = named;
  require(tensor.size(kColumn) <= 1 || tensor.stride(kColumn) == 1, name, " has stride ",
          tensor.stride(kColumn), " in its last dimension: expected 1, call .contiguous()");
  auto const address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  require(address % kVectorBytes == 0, name, " starts ", address % kVectorBytes,
          " bytes after a multiple of ", kVectorBytes,
          " bytes: expected a multiple, call .clone()");
  char const* const strides[] = {"batch", "row", "head"};
  constexpr int kVectorElements = kVectorBytes / kElementBytes;
  for (int axis : {kBatch, kRow, kHead}) {
    require(tensor.size(axis) <= 1 || tensor.stride(axis) % kVectorElements == 0, name, " has a ",
            strides[axis], " stride of ", tensor.stride(axis), " elements: expected a multiple of ",
            kVectorElements, " (", kVectorBytes, " bytes), call .contiguous()");
  }
}

void check_not_supported_yet(Arguments const& a) {
  require(!a.causal, "causal = True is not supported yet: expected False");
  require(a.window_left == -1, "window_left = ", a.window_left,
          " is not supported yet: expected -1, no window");
  require(a.window_right == -1, "window_right = ", a.window_right,
          " is not supported yet: expected -1, no window");
  require(a.softcap == 0, "softcap = ", a.softcap, " is not supported yet: expected 0, no cap");
}

float check_softmax_scale(std::optional<double> softmax_scale, int64_t d_head) {
  if (!softmax_scale) {
    return static_cast<float>(1 / std::sqrt(static_cast<double>(d_head)));
  }
  float const scale = static_cast<float>(*softmax_scale);
  require(std::isfinite(scale) && scale > 0, "softmax_scale = ", *softmax_scale,
          ": expected a finite number above 0");
  return scale;
}

TensorStrides strides_of(Tensor const& tensor) {
  return {.batch = tensor.stride(kBatch), .row = tensor.stride(kRow), .head = tensor.stride(kHead)};
}

}  // namespace

CheckedArguments check(Arguments const& a) {
  NamedTensor const q{"q", a.q}, k{"k", a.k}, v{"v", a.v};
  check_devices(a.q, {k, v});
  DType const dtype = check_dtypes(a.q, {k, v});
  check_shapes({q, k, v});
  check_memory(q);
  check_memory(k);
  check_memory(v);
  check_not_supported_yet(a);
  int64_t const d_head = a.q.size(kColumn);
  return {.problem = {.dtype = dtype,
                      .d_head = d_head,
                      .batch = a.q.size(kBatch),
                      .heads = a.q.size(kHead),
                      .seqlen_q = a.q.size(kRow)},
          .params = {.q = a.q.const_data_ptr(),
                     .k = a.k.const_data_ptr(),
                     .v = a.v.const_data_ptr(),
                     .o = nullptr,
                     .lse = nullptr,
                     .q_strides = strides_of(a.q),
                     .k_strides = strides_of(a.k),
                     .v_strides = strides_of(a.v),
                     .o_strides = {},
                     .batch = static_cast<int>(a.q.size(kBatch)),
                     .heads = static_cast<int>(a.q.size(kHead)),
                     .seqlen_q = static_cast<int>(a.q.size(kRow)),
                     .seqlen_k = static_cast<int>(a.k.size(kRow)),
                     .softmax_scale = check_softmax_scale(a.softmax_scale, d_head)}};
}

}  // namespace pyflash
