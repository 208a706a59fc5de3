// Which scores of a block count.
#pragma once

#include <cmath>

#include <cute/tensor.hpp>

namespace pyflash::sm80 {

using namespace cute;

// Sets the scores of columns at or past n_columns to -inf. coords: (row, column) in the block, partitioned like acc_S.
template <class AccS, class CoordTensor>
CUTE_DEVICE void mask_columns(AccS& acc_S, CoordTensor const& coords, int n_columns) {
  CUTE_UNROLL
  for (int i = 0; i < size(acc_S); ++i) {
    if (get<1>(coords(i)) >= n_columns) {
      acc_S(i) = -INFINITY;
    }
  }
}

}  // namespace pyflash::sm80
