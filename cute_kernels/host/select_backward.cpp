#include "cute_kernels/host/select_backward.h"

#include <algorithm>
#include <cstdint>
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

// What a kernel lacks to run a problem. Words are made of it only for a refusal.
enum class Lack { kNothing, kCodeForGpu, kDtype, kColumns, kFeatures, kOther };

Lack lack_of(Kernel<Backward> const& kernel, DType dtype, BackwardParams const& problem,
             Gpu const& gpu) {
  ConfigMapRow<Backward> const& row = *kernel.row;
  if (ctas_per_sm(row, gpu.sm_arch) == 0) {
    return Lack::kCodeForGpu;
  }
  if (row.dtype != dtype) {
    return Lack::kDtype;
  }
  if (row.d_head < problem.d_head) {
    return Lack::kColumns;
  }
  if (!covers(row, features_needed(problem, row.d_head))) {
    return Lack::kFeatures;
  }
  return kernel.refuses(fitted(problem, kernel)) != nullptr ? Lack::kOther : Lack::kNothing;
}

// As half a sentence.
std::string words_of(Lack lack, Kernel<Backward> const& kernel, DType dtype,
                     BackwardParams const& problem, Gpu const& gpu) {
  ConfigMapRow<Backward> const& row = *kernel.row;
  switch (lack) {
    case Lack::kCodeForGpu:
      return sentence("does not run on sm_", gpu.sm_arch);
    case Lack::kDtype:
      return sentence("is for ", name(row.dtype), ", q is ", name(dtype));
    case Lack::kColumns:
      return sentence("is for d_head up to ", row.d_head, ", q has d_head ", problem.d_head);
    case Lack::kFeatures:
      return sentence("is not built with ", name(features_needed(problem, row.d_head)));
    case Lack::kOther:
      return sentence("cannot run this problem: ", kernel.refuses(fitted(problem, kernel)));
    case Lack::kNothing:
      break;
  }
  return "";
}

// All of the map, in the order in which they are tried.
std::vector<Kernel<Backward>> const& ordered_kernels() {
  struct Cache {
    uint64_t generation = 0;
    std::vector<Kernel<Backward>> kernels;
  };
  thread_local Cache cache;
  // NOTE: read before the map is: a change in between is then seen at the next call.
  uint64_t const generation = config_map_generation();
  if (cache.generation != generation) {
    cache = {.generation = generation, .kernels = all_kernels<Backward>()};
    std::sort(cache.kernels.begin(), cache.kernels.end(), comes_before);
  }
  return cache.kernels;
}

std::vector<Kernel<Backward>> kernel_named(std::string_view name) {
  auto const kernel = find_kernel<Backward>(parse_short_form_of<Backward>(name));
  return kernel ? std::vector{*kernel} : std::vector<Kernel<Backward>>{};
}

BackwardSelection none_of(std::vector<Kernel<Backward>> const& kernels, DType dtype,
                          BackwardParams const& problem, Gpu const& gpu, std::string_view named) {
  if (kernels.empty()) {
    return {std::nullopt, sentence(named.empty() ? std::string("no kernel of op backward")
                                                 : sentence("config '", named, "'"),
                                   " is built; to build them: pyflash build --set ",
                                   problem.dropout.drops() ? "dropout" : "backward")};
  }
  std::string refused;
  for (Kernel<Backward> const& kernel : kernels) {
    Lack const lack = lack_of(kernel, dtype, problem, gpu);
    refused += sentence(refused.empty() ? "" : "; ", kernel.row->short_form, " ",
                        words_of(lack, kernel, dtype, problem, gpu));
  }
  if (problem.dropout.drops()) {
    refused += "; to build kernels with dropout: pyflash build --set dropout";
  }
  return {std::nullopt, refused};
}

}  // namespace

BackwardSelection select_backward(DType dtype, BackwardParams const& problem, Gpu const& gpu,
                                  std::string_view named) {
  std::vector<Kernel<Backward>> const of_name =
      named.empty() ? std::vector<Kernel<Backward>>{} : kernel_named(named);
  std::vector<Kernel<Backward>> const& kernels = named.empty() ? ordered_kernels() : of_name;
  for (Kernel<Backward> const& kernel : kernels) {
    if (lack_of(kernel, dtype, problem, gpu) == Lack::kNothing) {
      return {kernel, named.empty() ? "the first in rank of those built that take it" : "named"};
    }
  }
  return none_of(kernels, dtype, problem, gpu, named);
}

}  // namespace pyflash
