#include "cute_kernels/bindings/select.h"

#include <algorithm>

#include "cute_kernels/bindings/errors.h"
#include "cute_kernels/bindings/short_form.h"

namespace pyflash {
namespace {

constexpr char const* kNamed = "it was named";

bool rank_before(Kernel const& a, Kernel const& b) { return a.row->rank < b.row->rank; }

// CTAs of one launch, one per Q block, head and batch.
int64_t count_ctas(Problem const& problem, FlashForwardKernelConfig const& config) {
  return problem.batch * problem.heads * ((problem.seqlen_q + config.B_r - 1) / config.B_r);
}

std::string archs_of(ConfigMapRow const& row) {
  return sentence("machine code for sm_", row.sm_archs,
                  row.ptx_arch ? sentence(" and PTX of compute_", row.ptx_arch) : "");
}

FlashForwardKernelConfig named_config(std::string_view text, Problem const& problem) {
  FlashForwardKernelConfig const config = parse_short_form(text);
  require(config.dtype == problem.dtype, "config '", text, "' is for ", name(config.dtype),
          ", q is ", name(problem.dtype));
  require(config.d_head == problem.d_head, "config '", text, "' is for d_head ", config.d_head,
          ", q has d_head ", problem.d_head);
  return config;
}

Kernel named_kernel(std::string_view text, Problem const& problem, Gpu const& gpu) {
  std::optional<Kernel> const kernel = find_kernel(named_config(text, problem));
  require(kernel.has_value(), "config '", text,
          "' is not built: ", built_short_forms(problem.dtype, problem.d_head),
          "; to build it: python -m codegen --config '", text,
          "', and name it as its canonical() does");
  require(runs_on(*kernel->row, gpu.sm_arch), "config '", text, "' is not built for this GPU, sm_",
          gpu.sm_arch, ": it has ", archs_of(*kernel->row),
          "; to build it: python -m codegen --config '", text, "' --arch ", gpu.sm_arch);
  return *kernel;
}

// In order of rank; at least one.
std::vector<Kernel> candidates_on_gpu(Problem const& problem, Gpu const& gpu) {
  std::vector<Kernel> candidates = kernels_for(problem.dtype, problem.d_head);
  require(!candidates.empty(), "no config is built for ", name(problem.dtype), " with d_head ",
          problem.d_head, ": ", built_head_dims());
  std::erase_if(candidates,
                [&](Kernel const& kernel) { return !runs_on(*kernel.row, gpu.sm_arch); });
  require(!candidates.empty(), "no config for ", name(problem.dtype), " with d_head ",
          problem.d_head, " is built for this GPU, sm_", gpu.sm_arch,
          "; to build for it: python -m codegen --arch ", gpu.sm_arch);
  std::stable_sort(candidates.begin(), candidates.end(), rank_before);
  return candidates;
}

FlashForwardKernelConfig default_on_cpu(Problem const& problem) {
  return {.dtype = problem.dtype,
          .d_head = static_cast<int>(problem.d_head),
          .B_r = 64,
          .B_c = 64,
          .n_warps = 4,
          .async_copy = true,
          .eager_load_blocks = true,
          .swizzled = true,
          .Q_mma_load_K_tiles = 0,
          .K_mma_load_K_tiles = 2,
          .V_mma_load_K_tiles = 2,
          .mma_double_buffer_loads = false,
          .optimized_softmax = true};
}

}  // namespace

std::string GpuSelection::reason() const {
  if (n_candidates == 0) {
    return kNamed;
  }
  auto const& config = kernel.row->config;
  auto const candidates = sentence("of ", n_candidates, " configs built for ", name(config.dtype),
                                   " with d_head ", config.d_head, " that run on sm_", gpu.sm_arch);
  auto const chosen = sentence("rank ", kernel.row->rank, ", ", n_ctas, " CTAs");
  if (n_ctas >= gpu.n_sms) {
    return sentence(candidates, " the first in rank whose grid fills the ", gpu.n_sms,
                    " SMs: ", chosen);
  }
  return sentence(candidates, " none has a grid that fills the ", gpu.n_sms,
                  " SMs; the first in rank of those with the smallest B_r: ", chosen);
}

GpuSelection select_on_gpu(Problem const& problem, Gpu const& gpu, std::string_view named) {
  if (!named.empty()) {
    Kernel const kernel = named_kernel(named, problem, gpu);
    return {.kernel = kernel,
            .gpu = gpu,
            .n_ctas = count_ctas(problem, kernel.row->config),
            .n_candidates = 0};
  }
  std::vector<Kernel> const candidates = candidates_on_gpu(problem, gpu);
  auto chosen = std::find_if(candidates.begin(), candidates.end(), [&](Kernel const& kernel) {
    return count_ctas(problem, kernel.row->config) >= gpu.n_sms;
  });
  if (chosen == candidates.end()) {
    chosen = std::min_element(
        candidates.begin(), candidates.end(),
        [](Kernel const& a, Kernel const& b) { return a.row->config.B_r < b.row->config.B_r; });
  }
  return {.kernel = *chosen,
          .gpu = gpu,
          .n_ctas = count_ctas(problem, chosen->row->config),
          .n_candidates = static_cast<int>(candidates.size())};
}

CpuSelection select_on_cpu(Problem const& problem, std::string_view named) {
  if (!named.empty()) {
    return {named_config(named, problem), kNamed};
  }
  std::vector<Kernel> const candidates = kernels_for(problem.dtype, problem.d_head);
  if (!candidates.empty()) {
    auto const& first = *std::min_element(candidates.begin(), candidates.end(), rank_before);
    return {first.row->config,
            "the first in rank of those built for this dtype and d_head; on the CPU any would run"};
  }
  require(problem.d_head == 64 || problem.d_head == 128, "q has d_head ", problem.d_head,
          ": expected 64 or 128, or the d_head of a config that is named");
  return {default_on_cpu(problem),
          "the default on the CPU: no config is built for this dtype and d_head"};
}

}  // namespace pyflash
