// Where kernels sum the gradients of a captured tensor, for the host and the device.
#pragma once

#include <cstdint>

#include "cute_kernels/common/integers.h"
#include "cute_kernels/variant/table.h"

namespace pyflash::variant {

// Which pairs of a block have one place in the sums: all, those of a query, those of a key; or by chance runs of
// neighbours, such as those of distant keys in a table of distances; or no two.
enum class SummedOver { block, keys, queries, runs, nothing };

// Floats of the tensor's shape, contiguous. Indices are those of Table.
template <int Rank>
struct Sums {
  static constexpr int kAxes = Rank > 0 ? Rank : 1;

  float* data;
  int extents[kAxes];

  template <class... Index>
  PYFLASH_HOST_DEVICE float* at(Index... indices) const {
    static_assert(sizeof...(Index) == Rank);
    int64_t offset = 0;
    [[maybe_unused]] int axis = 0;
    ((offset = offset * extents[axis] + place_in_axis(indices, extents[axis]), ++axis), ...);
    return data + offset;
  }
};

}  // namespace pyflash::variant
