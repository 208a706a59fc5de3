// Where the elements of a tensor of (batch, row, head, column) lie, for the host and the device. Columns are adjacent.
#pragma once

#include <cstdint>

#include "cute_kernels/common/integers.h"

namespace pyflash {

// In elements, 64-bit, so that no offset between rows, heads or batches can overflow.
struct TensorStrides {
  int64_t batch;  // 0 where sequences are packed
  int64_t row;
  int64_t head;

  PYFLASH_HOST_DEVICE constexpr int64_t offset_of(int64_t batch_index, int64_t head_index,
                                                  int64_t row_index) const {
    return batch_index * batch + head_index * head + row_index * row;
  }

  // The first element of a row.
  // NOTE: offset_of and a sum with the base would compile to other code.
  template <class Element>
  PYFLASH_HOST_DEVICE constexpr Element* at(Element* base, int batch_index, int head_index,
                                            int row_index) const {
    return base + batch_index * batch + head_index * head + row_index * row;
  }
};

}  // namespace pyflash
