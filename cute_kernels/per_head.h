// Numbers for each head as a kernel reads them.
#pragma once

#include "cute_kernels/device.h"
#include "cute_kernels/params.h"

namespace pyflash {

// That of a row of a head of a sequence, fp32.
template <class Element>
CUTE_DEVICE float load_per_head(PerHead const& numbers, int batch, int head, int row) {
  int64_t const offset = numbers.strides.offset_of(batch, head, row);
  return numbers.is_fp32
             ? device::load(static_cast<float const*>(numbers.data) + offset)
             : static_cast<float>(device::load(static_cast<Element const*>(numbers.data) + offset));
}

}  // namespace pyflash
