// What a call captures for a variant, for host code: tensors and numbers, each in the order of the parameters.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cute_kernels/variant/sums.h"
#include "cute_kernels/variant/table.h"

namespace pyflash::variant {

inline constexpr int kMaxRank = 4;

struct TensorArgument {
  void const* data;
  int rank;
  int64_t extents[kMaxRank];
  int64_t strides[kMaxRank];  // elements
};

struct Arguments {
  std::vector<TensorArgument> tensors;
  std::vector<double> reals;
  std::vector<int64_t> integers;
  // The starts of packed sequences, or the lengths of those in pages, where the kernel's are not addresses of the host.
  int const* host_starts_q = nullptr;
  int const* host_starts_k = nullptr;
  // Where the gradients of each tensor are summed, nullptr for one whose gradients are not; or empty.
  std::vector<float*> sums_of;

  template <class T, int Rank>
  Table<T, Rank> table(int i) const {
    TensorArgument const& tensor = tensors[i];
    Table<T, Rank> table{static_cast<T const*>(tensor.data), {1}, {1}};
    std::transform(tensor.extents, tensor.extents + Rank, table.extents,
                   [](int64_t extent) { return static_cast<int>(extent); });
    std::copy(tensor.strides, tensor.strides + Rank, table.strides);
    return table;
  }
  template <int Rank>
  Sums<Rank> sums(int i) const {
    Sums<Rank> sums{sums_of[i], {1}};
    std::transform(tensors[i].extents, tensors[i].extents + Rank, sums.extents,
                   [](int64_t extent) { return static_cast<int>(extent); });
    return sums;
  }
  float real(int i) const { return static_cast<float>(reals[i]); }
  template <class T>
  T integer(int i) const {
    return static_cast<T>(integers[i]);
  }
};

}  // namespace pyflash::variant
