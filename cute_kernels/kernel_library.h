// What a kernel library offers besides its rows; defined in kernel_library.cu, named by the emitted config map.
#pragma once

#include "cute_kernels/registry.h"

namespace pyflash {

template <class Op>
using RowsOf = Span<ConfigMapRow<Op>>;

// The library of these rows.
KernelLibrary make_library(OfEachOp<RowsOf> const& rows);

// As OpKernels says; instantiated for each op.
template <class Op>
void describe(ConfigMapRow<Op>& row);

}  // namespace pyflash
