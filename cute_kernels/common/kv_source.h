// Where K and V are, and where the keys of a sequence lie in them, for the host and the device. Only this file computes
// addresses of K and V.
#pragma once

#include <cstdint>

#include "cute_kernels/common/sequence.h"
#include "cute_kernels/common/tensor_strides.h"

namespace pyflash {

// K, or V: (batch, seqlen_k, heads_kv, d_head), or packed, (total_k, heads_kv, d_head).
struct KvTensor {
  void const* data;  // nullptr: no elements
  TensorStrides strides;

  // A key's first element of a head.
  template <class Element>
  PYFLASH_HOST_DEVICE constexpr Element const* at(int batch, int head, int row) const {
    return strides.at(static_cast<Element const*>(data), batch, head, row);
  }
};

struct KvSource {
  KvTensor k;
  KvTensor v;
  Sequences sequences;  // of keys
  int heads;            // of K and V

  // The head of K and V that a head of Q attends. heads_q: a multiple of heads.
  PYFLASH_HOST_DEVICE constexpr int head_of(int head_q, int heads_q) const {
    return head_q / (heads_q / heads);
  }
};

}  // namespace pyflash
