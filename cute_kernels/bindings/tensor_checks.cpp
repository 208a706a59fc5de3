#include "cute_kernels/bindings/tensor_checks.h"

#include <algorithm>
#include <utility>

#include "cute_kernels/bindings/describe.h"
#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/problem.h"

namespace pyflash {
namespace {

using torch::stable::Tensor;

constexpr int kVectorBytes = 16;  // kernels read 16 bytes at a time
constexpr int kVectorElements = kVectorBytes / 2;
constexpr int64_t kMaxHeadDim = 256;

std::pair<int32_t, int32_t> device_of(Tensor const& tensor) {
  int32_t type = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &type));
  return {type, tensor.get_device_index()};
}

}  // namespace

Input::Input(char const* name, Tensor const& tensor, Layout const& layout)
    : name(name), tensor(tensor), data(tensor.const_data_ptr()), extents{1, 1, 1, 1}, strides{} {
  auto const sizes = tensor.sizes();
  require(static_cast<int>(sizes.size()) == layout.n_dims, name, " has shape ", ShapeOf{tensor},
          ": expected ", layout.n_dims, " dimensions, ", layout.dims);
  std::copy_n(sizes.data(), layout.n_dims, extents + kNAxes - layout.n_dims);
  std::copy_n(tensor.strides().data(), layout.n_dims, strides + kNAxes - layout.n_dims);
}

int32_t dtype_of(Tensor const& tensor) {
  int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
  return dtype;
}

void check_devices(Tensor const& q, std::initializer_list<NamedTensor> others) {
  auto const expected = device_of(q);
  for (auto const& [name, tensor] : others) {
    require(device_of(tensor) == expected, name, " is on ", DeviceOf{tensor}, ": expected ",
            DeviceOf{q}, ", where q is");
  }
}

DType check_dtypes(Tensor const& q, std::initializer_list<NamedTensor> others) {
  int32_t const dtype = dtype_of(q);
  bool const is_half = dtype == aoti_torch_dtype_float16();
  require(is_half || dtype == aoti_torch_dtype_bfloat16(), "q is ", DTypeOf{q},
          ": expected float16 or bfloat16");
  for (auto const& [name, tensor] : others) {
    require(dtype_of(tensor) == dtype, name, " is ", DTypeOf{tensor}, ": expected ", DTypeOf{q},
            " as q");
  }
  return is_half ? DType::FP16 : DType::BF16;
}

void check_shapes(Input const& q, Input const& k, Input const& v, Layout const& layout) {
  int64_t const d_head = q.extents[kColumn];
  require(d_head > 0 && d_head <= kMaxHeadDim && d_head % kVectorElements == 0, "q has d_head ",
          d_head, ": expected a multiple of ", kVectorElements, " from ", kVectorElements, " to ",
          kMaxHeadDim);
  for (int axis : {kBatch, kColumn}) {
    require(k.extents[axis] == q.extents[axis], "k has shape ", ShapeOf{k.tensor}, ": expected ",
            layout.axes[axis], " ", q.extents[axis], " as q");
  }
  int64_t const heads = q.extents[kHead], heads_kv = k.extents[kHead];
  require(heads == 0 || (heads_kv > 0 && heads % heads_kv == 0), "k has shape ", ShapeOf{k.tensor},
          ": expected a number of heads that divides the ", heads, " of q");
  for (int axis : {kBatch, kRow, kHead, kColumn}) {
    require(v.extents[axis] == k.extents[axis], "v has shape ", ShapeOf{v.tensor}, ": expected ",
            layout.axes[axis], " ", k.extents[axis], " as k");
  }
  for (Input const* input : {&q, &k, &v}) {
    for (int axis : {kBatch, kRow, kHead}) {
      require(input->extents[axis] <= kMaxExtent, input->name, " has ", layout.axes[axis], " ",
              input->extents[axis], ": expected at most ", kMaxExtent);
    }
  }
}

void check_batch_times_heads(int64_t batch, Input const& q) {
  require(batch * q.extents[kHead] <= kMaxExtent, "q has ", q.extents[kHead], " heads in ", batch,
          " batches: expected at most ", kMaxExtent, " for batch times heads");
}

// NOTE: the stride of a dimension of size 1 says nothing and can be anything.
void check_memory(Input const& input) {
  require(input.extents[kColumn] <= 1 || input.strides[kColumn] == 1, input.name, " has stride ",
          input.strides[kColumn], " in its last dimension: expected 1, call .contiguous()");
  check_address(input.name, input.data, kVectorBytes);
  char const* const strides[] = {"batch", "row", "head"};
  for (int axis : {kBatch, kRow, kHead}) {
    require(input.extents[axis] <= 1 || input.strides[axis] % kVectorElements == 0, input.name,
            " has a ", strides[axis], " stride of ", input.strides[axis],
            " elements: expected a multiple of ", kVectorElements, " (", kVectorBytes,
            " bytes), call .contiguous()");
  }
}

void check_address(char const* name, void const* data, size_t multiple) {
  auto const address = reinterpret_cast<uintptr_t>(data);
  require(address % multiple == 0, name, " starts ", address % multiple,
          " bytes after a multiple of ", multiple, " bytes: expected a multiple, call .clone()");
}

}  // namespace pyflash
