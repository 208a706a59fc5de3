// torch's tensors: as host code sees them, and new ones.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "cute_kernels/bindings/torch_stable.h"
#include "cute_kernels/host/tensor_view.h"

namespace pyflash {

// Valid as long as the tensor. name: as it is to appear in refusals, kept.
TensorView view_of(char const* name, torch::stable::Tensor const& tensor);

// An uninitialised, contiguous tensor, where q is. dtype: aoti_torch_dtype_float32(), aoti_torch_dtype_int64() or of 16 bits.
torch::stable::Tensor allocate(char const* name, torch::stable::Tensor const& q,
                               int64_t const* shape, int rank, int32_t dtype);

template <size_t n>
torch::stable::Tensor allocate(char const* name, torch::stable::Tensor const& q,
                               std::array<int64_t, n> const& shape, int32_t dtype) {
  return allocate(name, q, shape.data(), n, dtype);
}

// An uninitialised tensor as torch.empty_like makes it.
torch::stable::Tensor allocate_like(char const* name, torch::stable::Tensor const& x);

// A contiguous copy.
torch::stable::Tensor copied(torch::stable::Tensor const& x);

// Allocates an op's workspace where `like` is, if params need any, and points them at it. It may be freed when the kernels
// that use it are in the stream: torch reuses memory in the order of the stream.
template <class Op>
std::optional<torch::stable::Tensor> allocate_workspace(torch::stable::Tensor const& like,
                                                        typename Op::Params& params) {
  auto const buffers = Op::workspace(params);
  int64_t n_elements = 0;
  for (auto const& buffer : buffers) {
    n_elements += buffer.n_elements;
  }
  if (n_elements == 0) {
    return std::nullopt;
  }
  torch::stable::Tensor workspace =
      allocate<1>(Op::kWorkspace, like, {n_elements}, aoti_torch_dtype_float32());
  auto* next = static_cast<float*>(workspace.mutable_data_ptr());
  for (auto const& buffer : buffers) {
    if (buffer.n_elements > 0) {  // the caller's own memory stays where there are none
      params.*buffer.pointer = next;
      next += buffer.n_elements;
    }
  }
  return workspace;
}

// As torch numbers it: aoti_torch_dtype_float16() and so on.
int32_t dtype_of(torch::stable::Tensor const& tensor);

}  // namespace pyflash
