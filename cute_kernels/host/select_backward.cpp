#include "cute_kernels/host/select_backward.h"

#include <algorithm>
#include <vector>

#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/names.h"

namespace pyflash {
namespace {

// By d_head, then by rank.
bool comes_before(Kernel<Backward> const& a, Kernel<Backward> const& b) {
  return std::pair(a.row->d_head, a.row->rank) < std::pair(b.row->d_head, b.row->rank);
}

}  // namespace

BackwardParams fitted(BackwardParams problem, Kernel<Backward> const& kernel) {
  problem.set_shape(kernel.row->shape);
  return problem;
}

BackwardSelection select_backward(DType dtype, BackwardParams const& problem, Gpu const& gpu) {
  std::vector<Kernel<Backward>> kernels = all_kernels<Backward>();
  if (kernels.empty()) {
    return {std::nullopt,
            "no kernels of op backward are built; to build them: pyflash build --set backward"};
  }
  std::erase_if(kernels, [&](auto const& kernel) { return !runs_on(*kernel.row, gpu.sm_arch); });
  if (kernels.empty()) {
    return {std::nullopt, sentence("no kernel of op backward runs on sm_", gpu.sm_arch)};
  }
  std::erase_if(kernels, [&](auto const& kernel) {
    return kernel.row->dtype != dtype || kernel.row->d_head < problem.d_head;
  });
  if (kernels.empty()) {
    return {std::nullopt, sentence("no kernel of op backward is built for ", name(dtype),
                                   " with d_head ", problem.d_head)};
  }
  BackwardFeatures const needed = features_needed(problem, problem.d_head);
  std::erase_if(kernels, [&](auto const& kernel) { return !covers(*kernel.row, needed); });
  if (kernels.empty()) {
    return {std::nullopt, sentence("no kernel of op backward is built with ", name(needed))};
  }
  std::sort(kernels.begin(), kernels.end(), comes_before);
  std::string refused;
  for (Kernel<Backward> const& kernel : kernels) {
    char const* const reason = refusal(*kernel.row, fitted(problem, kernel));
    if (reason == nullptr) {
      return {kernel,
              sentence("best of the ", kernels.size(), " built for ", name(dtype), " with d_head ",
                       kernel.row->d_head, " or more, and for ", name(needed))};
    }
    if (refused.empty()) {
      refused = sentence(kernel.row->short_form, " cannot run this problem: ", reason);
    }
  }
  return {std::nullopt, refused};
}

}  // namespace pyflash
