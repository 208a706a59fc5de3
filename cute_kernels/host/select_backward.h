// Which config of op backward runs a problem: the named one, or the call is refused; without a name, of those that are built for its
// dtype, have code for the device, cover its features and accept its strides, the first in rank of the smallest d_head that is not
// below the problem's. A family that is slower where another one runs counts for more columns.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cute_kernels/backward.h"
#include "cute_kernels/host/config_map.h"
#include "cute_kernels/host/select.h"

namespace pyflash {

struct BackwardSelection {
  std::optional<Kernel<Backward>> kernel;
  std::string reason;  // why this one, or why none
};

// named: a short form, or "". Refuses a text that names no config of the op.
BackwardSelection select_backward(DType dtype, BackwardParams const& problem, Gpu const& gpu,
                                  std::string_view named = "");

// The columns by which rows are compared.
inline int columns_compared(ConfigMapRow<Backward> const& row) {
  return row.d_head * row.shape.slowness;
}

// With the shape of the kernel's config.
BackwardParams fitted(BackwardParams problem, Kernel<Backward> const& kernel);

}  // namespace pyflash
