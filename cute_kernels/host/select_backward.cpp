#include "cute_kernels/host/select_backward.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/names.h"
#include "cute_kernels/host/short_form.h"

namespace pyflash {
namespace {

// By columns, then by rank.
bool comes_before(Kernel<Backward> const& a, Kernel<Backward> const& b) {
  return std::pair(columns_compared(*a.row), a.row->rank) <
         std::pair(columns_compared(*b.row), b.row->rank);
}

}  // namespace

BackwardParams fitted(BackwardParams problem, Kernel<Backward> const& kernel) {
  problem.set_shape(kernel.row->shape);
  return problem;
}

namespace {

// Why a kernel does not run a problem, as half a sentence; "": it does.
std::string refusal_of(Kernel<Backward> const& kernel, DType dtype, BackwardParams const& problem,
                       Gpu const& gpu) {
  ConfigMapRow<Backward> const& row = *kernel.row;
  if (ctas_per_sm(row, gpu.sm_arch) == 0) {
    return sentence("does not run on sm_", gpu.sm_arch);
  }
  if (row.dtype != dtype) {
    return sentence("is for ", name(row.dtype), ", q is ", name(dtype));
  }
  if (row.d_head < problem.d_head) {
    return sentence("is for d_head up to ", row.d_head, ", q has d_head ", problem.d_head);
  }
  BackwardFeatures const needed = features_needed(problem, row.d_head);
  if (!covers(row, needed)) {
    return sentence("is not built with ", name(needed));
  }
  char const* const reason = kernel.refuses(fitted(problem, kernel));
  return reason != nullptr ? sentence("cannot run this problem: ", reason) : "";
}

}  // namespace

BackwardSelection select_backward(DType dtype, BackwardParams const& problem, Gpu const& gpu,
                                  std::string_view named) {
  std::vector<Kernel<Backward>> kernels;
  if (named.empty()) {
    kernels = all_kernels<Backward>();
    std::sort(kernels.begin(), kernels.end(), comes_before);
  } else if (auto kernel = find_kernel<Backward>(parse_short_form_of<Backward>(named))) {
    kernels = {*kernel};
  }
  if (kernels.empty()) {
    return {std::nullopt, sentence(named.empty() ? std::string("no kernel of op backward")
                                                 : sentence("config '", named, "'"),
                                   " is built; to build them: pyflash build --set ",
                                   problem.dropout.drops() ? "dropout" : "backward")};
  }
  std::string refused;
  for (Kernel<Backward> const& kernel : kernels) {
    std::string const reason = refusal_of(kernel, dtype, problem, gpu);
    if (reason.empty()) {
      return {kernel, named.empty() ? "the first in rank of those built that take it" : "named"};
    }
    refused += sentence(refused.empty() ? "" : "; ", kernel.row->short_form, " ", reason);
  }
  if (problem.dropout.drops()) {
    refused += "; to build kernels with dropout: pyflash build --set dropout";
  }
  return {std::nullopt, refused};
}

}  // namespace pyflash
