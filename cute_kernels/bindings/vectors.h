// Tensors of 16-bit elements that kernels read and write 16 bytes at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cute_kernels/host/tensor_view.h"

namespace pyflash {

constexpr int64_t kVectorElements = 8;
constexpr int64_t kVectorBytes = 16;

// Whether rows of 16-bit elements, which the last dimension has, are whole vectors at multiples of their size.
inline bool is_of_vectors(TensorView const& x) {
  int const last = x.rank - 1;
  bool are = (x.dtype == ElementType::kFloat16 || x.dtype == ElementType::kBFloat16) &&
             x.sizes[last] % kVectorElements == 0 && x.strides[last] == 1 &&
             reinterpret_cast<uintptr_t>(x.data) % kVectorBytes == 0;
  for (int i = 0; i < last; ++i) {
    are = are && (x.sizes[i] <= 1 || x.strides[i] % kVectorElements == 0);
  }
  return are;
}

// Whether the memory from the first element to the last of one tensor has elements of the other.
inline bool may_share(TensorView const& a, TensorView const& b) {
  auto const begin = [](TensorView const& x) { return reinterpret_cast<uintptr_t>(x.data); };
  auto const end = [&](TensorView const& x) {
    uintptr_t at = begin(x) + sizeof(uint16_t);
    for (int i = 0; i < x.rank; ++i) {
      at += std::max<int64_t>(x.sizes[i] - 1, 0) * x.strides[i] * sizeof(uint16_t);
    }
    return at;
  };
  return begin(a) < end(b) && begin(b) < end(a);
}

}  // namespace pyflash
