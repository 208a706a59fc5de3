// torch's tensors: as host code sees them, and new ones.
#pragma once

#include <array>
#include <cstdint>

#include "cute_kernels/bindings/torch_stable.h"
#include "cute_kernels/host/tensor_view.h"

namespace pyflash {

// Valid as long as the tensor. name: as it is to appear in refusals, kept.
TensorView view_of(char const* name, torch::stable::Tensor const& tensor);

// An uninitialised, contiguous tensor, where q is. dtype: aoti_torch_dtype_float32() or of 16 bits.
torch::stable::Tensor allocate(char const* name, torch::stable::Tensor const& q,
                               int64_t const* shape, int rank, int32_t dtype);

template <size_t n>
torch::stable::Tensor allocate(char const* name, torch::stable::Tensor const& q,
                               std::array<int64_t, n> const& shape, int32_t dtype) {
  return allocate(name, q, shape.data(), n, dtype);
}

// As torch numbers it: aoti_torch_dtype_float16() and so on.
int32_t dtype_of(torch::stable::Tensor const& tensor);

}  // namespace pyflash
