// The problem as a kernel sees it: pointers, strides, extents. Strides are in elements and 64-bit, so that no offset
// between rows, heads or batches can overflow.
#pragma once

#include <cstdint>

namespace pyflash {

struct TensorStrides {
  int64_t batch;
  int64_t row;
  int64_t head;
};

struct ForwardParams {
  void const* q;  // (batch, seqlen_q, heads, d_head)
  void const* k;  // (batch, seqlen_k, heads, d_head)
  void const* v;  // (batch, seqlen_k, heads, d_head)
  void* o;        // (batch, seqlen_q, heads, d_head)
  float* lse;     // (batch, heads, seqlen_q), natural log

  TensorStrides q_strides;
  TensorStrides k_strides;
  TensorStrides v_strides;
  TensorStrides o_strides;

  int batch;
  int heads;
  int seqlen_q;
  int seqlen_k;

  float softmax_scale;
};

}  // namespace pyflash
