// What is checked of q, k and v, padded or packed.
#pragma once

#include <initializer_list>

#include "cute_kernels/bindings/torch_stable.h"
#include "cute_kernels/config.h"
#include "cute_kernels/params.h"

namespace pyflash {

enum Axis { kBatch, kRow, kHead, kColumn, kNAxes };

// How q, k and v lie in memory.
struct Layout {
  int n_dims;  // the last ones of kNAxes
  char const* dims;
  char const* axes[kNAxes];
};
inline constexpr Layout kPadded{
    4, "(batch, seqlen, heads, d_head)", {"batch", "seqlen", "heads", "d_head"}};
inline constexpr Layout kPacked{3, "(total, heads, d_head)", {"", "total", "heads", "d_head"}};

// q, k or v, looked at once. Packed sequences are one batch.
struct Input {
  char const* name;
  torch::stable::Tensor const& tensor;
  void const* data;
  int64_t extents[kNAxes];
  int64_t strides[kNAxes];

  // Refuses a tensor of another rank than the layout's.
  Input(char const* name, torch::stable::Tensor const& tensor, Layout const& layout);

  TensorStrides tensor_strides() const {
    return {.batch = strides[kBatch], .row = strides[kRow], .head = strides[kHead]};
  }
};

struct NamedTensor {
  char const* name;
  torch::stable::Tensor const& tensor;
};

void check_devices(torch::stable::Tensor const& q, std::initializer_list<NamedTensor> others);
DType check_dtypes(torch::stable::Tensor const& q, std::initializer_list<NamedTensor> others);
void check_shapes(Input const& q, Input const& k, Input const& v, Layout const& layout);
void check_batch_times_heads(int64_t batch, Input const& q);
void check_memory(Input const& input);
void check_address(char const* name, void const* data, size_t multiple);

// As torch numbers it: aoti_torch_dtype_float16() and so on.
int32_t dtype_of(torch::stable::Tensor const& tensor);

}  // namespace pyflash
