// The kernels with variants of the process, of both ops: the rows of every library loaded so far.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cute_kernels/host/problem.h"
#include "cute_kernels/host/rules.h"
#include "cute_kernels/host/variant_program.h"
#include "cute_kernels/variant_row.h"

namespace pyflash {

template <class Op>
struct VariantKernelOf {
  VariantRowOf<Op> const* row;
  KernelLibrary const* library;
  size_t features = 0;  // the combination that runs a problem
  int ctas_per_sm = 0;
};
using VariantKernel = VariantKernelOf<Forward>;
using GradientKernel = VariantKernelOf<Backward>;

// Rows of a library, which is never unloaded. Thread-safe, as are the readers below.
void add_variant_rows(Span<VariantRow> const& rows, KernelLibrary const& library);
void add_variant_rows(Span<GradientRow> const& rows, KernelLibrary const& library);

// The kernel of a variant for a problem: that of the named config, or the first in rank of those of the smallest d_head whose tiles
// are for so many queries. Fails where there is none, saying how to build one.
VariantKernel select_variant(Problem const& problem, Gpu const& gpu, VariantProgram const& variant,
                             std::string_view named);
// The same of its gradients, and those of captured tensors, by their places, ascending.
GradientKernel select_gradient(DType dtype, BackwardParams const& params, Gpu const& gpu,
                               VariantProgram const& variant, std::vector<int64_t> const& summed,
                               std::string_view named);

}  // namespace pyflash
