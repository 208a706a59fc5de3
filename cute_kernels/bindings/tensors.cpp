#include "cute_kernels/bindings/tensors.h"

#include <functional>
#include <numeric>
#include <utility>

#include "cute_kernels/host/errors.h"

namespace pyflash {
namespace {

using torch::stable::Tensor;

ElementType element_type_of(Tensor const& tensor) {
  // NOTE: asked at run time: the numbers are those of the torch that is loaded.
  static std::pair<int32_t, ElementType> const types[] = {
      {aoti_torch_dtype_float16(), ElementType::kFloat16},
      {aoti_torch_dtype_bfloat16(), ElementType::kBFloat16},
      {aoti_torch_dtype_float32(), ElementType::kFloat32},
      {aoti_torch_dtype_int32(), ElementType::kInt32},
      {aoti_torch_dtype_int64(), ElementType::kInt64},
      {aoti_torch_dtype_float64(), ElementType::kFloat64},
      {aoti_torch_dtype_int8(), ElementType::kInt8},
      {aoti_torch_dtype_int16(), ElementType::kInt16},
      {aoti_torch_dtype_uint8(), ElementType::kUInt8},
      {aoti_torch_dtype_uint64(), ElementType::kUInt64},
      {aoti_torch_dtype_bool(), ElementType::kBool},
      {aoti_torch_dtype_float8_e4m3fn(), ElementType::kFloat8E4M3}};
  int32_t const dtype = dtype_of(tensor);
  for (auto const& [number, type] : types) {
    if (number == dtype) {
      return type;
    }
  }
  return ElementType::kOther;
}

Device device_of(Tensor const& tensor) {
  if (tensor.is_cuda()) {
    return {Device::Kind::kCuda, tensor.get_device_index()};
  }
  return {tensor.is_cpu() ? Device::Kind::kCpu : Device::Kind::kOther, 0};
}

}  // namespace

TensorView view_of(char const* name, Tensor const& tensor) {
  auto const sizes = tensor.sizes();
  return {.name = name,
          .data = tensor.const_data_ptr(),
          .rank = static_cast<int>(sizes.size()),
          .sizes = sizes.data(),
          .strides = tensor.strides().data(),
          .dtype = element_type_of(tensor),
          .device = device_of(tensor)};
}

// NOTE: the stable ABI passes on that torch failed, not why; torch's own words are on stderr.
Tensor allocate(char const* name, Tensor const& q, int64_t const* shape, int rank, int32_t dtype) {
  AtenTensorHandle tensor = nullptr;
  if (aoti_torch_aten_new_empty(q.get(), shape, rank, &dtype, nullptr, nullptr, 0, nullptr,
                                &tensor) != 0) {
    auto const numel = std::accumulate(shape, shape + rank, 1., std::multiplies<>());
    int const size = dtype == aoti_torch_dtype_int64()     ? 8
                     : dtype == aoti_torch_dtype_float32() ? 4
                                                           : 2;
    fail("torch could not allocate ", name, ", ", numel * size, " bytes");
  }
  return Tensor(tensor);
}

Tensor allocate_like(char const* name, Tensor const& x) {
  // NOTE: the dispatcher looks an op of torch up by its name, which takes longer than to allocate.
  if (!x.is_contiguous()) {
    return torch::stable::empty_like(x);
  }
  auto const sizes = x.sizes();
  return allocate(name, x, sizes.data(), static_cast<int>(sizes.size()), dtype_of(x));
}

Tensor copied(Tensor const& x) {
  auto const sizes = x.sizes();
  Tensor copy = allocate("a copy", x, sizes.data(), static_cast<int>(sizes.size()), dtype_of(x));
  torch::stable::copy_(copy, x);
  return copy;
}

int32_t dtype_of(Tensor const& tensor) {
  int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
  return dtype;
}

}  // namespace pyflash
