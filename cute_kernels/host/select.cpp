#include "cute_kernels/host/select.h"

#include <algorithm>
#include <tuple>

#include "cute_kernels/host/candidates.h"
#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/short_form.h"
#include "cute_kernels/host/splits.h"

namespace pyflash {
namespace {

constexpr char const* kNamed = "it was named";

// CTAs of one pass, one per Q block, head and batch.
int64_t count_ctas(ForwardParams const& params, FlashForwardKernelConfig const& config) {
  int64_t const n_row_blocks = (int64_t(params.seqlen_q) + config.B_r - 1) / config.B_r;
  return n_row_blocks * params.heads * params.batch;
}

std::string archs_of(ConfigMapRow const& row) {
  return sentence("machine code for sm_", row.sm_archs,
                  row.ptx_arch ? sentence(" and PTX of compute_", row.ptx_arch) : "");
}

// What the CPU runs where nothing is built, and what to build for a GPU.
FlashForwardKernelConfig default_config(Problem const& problem) {
  int d_head = problem.params.d_head;
  for (int usual : {256, 192, 128, 96, 64, 32}) {
    d_head = usual >= problem.params.d_head ? usual : d_head;
  }
  return {.dtype = problem.dtype,
          .d_head = d_head,
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

FlashForwardKernelConfig named_config(std::string_view text, Problem const& problem) {
  FlashForwardKernelConfig const config = parse_short_form(text);
  require(config.dtype == problem.dtype, "config '", text, "' is for ", name(config.dtype),
          ", q is ", name(problem.dtype));
  require(config.d_head >= problem.params.d_head, "config '", text, "' is for d_head up to ",
          config.d_head, ", q has d_head ", problem.params.d_head);
  return config;
}

Kernel named_kernel(std::string_view text, Problem const& problem, Gpu const& gpu) {
  FlashForwardKernelConfig const config = named_config(text, problem);
  std::optional<Kernel> const kernel = find_kernel(config);
  if (!kernel) {
    refuse("config '", text, "' is not built: ", built_short_forms(config.dtype, config.d_head),
           "; to build it: python -m codegen --config '", text,
           "', and name it as its canonical() does");
  }
  if (!runs_on(*kernel->row, gpu.sm_arch)) {
    refuse("config '", text, "' is not built for this GPU, sm_", gpu.sm_arch, ": it has ",
           archs_of(*kernel->row), "; to build it: python -m codegen --config '", text, "' --arch ",
           gpu.sm_arch);
  }
  return *kernel;
}

[[noreturn]] void refuse_without_candidates(Problem const& problem, Gpu const& gpu) {
  auto const wanted =
      sentence(name(problem.dtype), " with d_head ", problem.params.d_head, " or more");
  bool const on_others =
      candidates_for({problem.dtype, problem.params.d_head, /*sm_arch=*/0}).count > 0;
  auto const config = short_form(default_config(problem));
  if (on_others) {
    refuse("no config for ", wanted, " is built for this GPU, sm_", gpu.sm_arch,
           "; to build for it: python -m codegen --arch ", gpu.sm_arch);
  }
  refuse("no config is built for ", wanted, ": ", built_head_dims(),
         "; to build one: python -m codegen --config '", config, "'");
}

// Rule 1, 2 or 3 of select.h, and the kernel that it gives. `kernels`: the first of each B_r, in order of rank.
std::pair<int, Kernel> choose(std::vector<Kernel> const& kernels, ForwardParams const& params,
                              int n_sms) {
  Kernel const& smallest = *std::min_element(
      kernels.begin(), kernels.end(),
      [](Kernel const& a, Kernel const& b) { return a.row->config.B_r < b.row->config.B_r; });
  if (params.seqlen_q <= smallest.row->config.B_r) {
    return {1, smallest};
  }
  for (Kernel const& kernel : kernels) {
    if (count_ctas(params, kernel.row->config) >= n_sms) {
      return {2, kernel};
    }
  }
  return {3, smallest};
}

// CTAs that run at a time. An architecture that the resource model does not know is taken for the next older one.
int64_t count_slots(ConfigMapRow const& row, Gpu const& gpu) {
  int per_sm = 0;
  for (ArchCtas const& entry : row.ctas_per_sm) {
    per_sm = entry.sm_arch <= gpu.sm_arch ? entry.ctas : per_sm;
  }
  return int64_t(gpu.n_sms) * std::max(per_sm, 1);
}

}  // namespace

std::string GpuSelection::reason() const {
  std::string const splits = num_splits == 1
                                 ? sentence("; its ", n_key_blocks, " blocks of keys in one pass")
                                 : sentence("; its ", n_key_blocks, " blocks of keys in ",
                                            num_splits, " splits, ", n_ctas * num_splits, " CTAs");
  std::string const asked = splits_asked_for ? sentence(splits, ", as asked for") : splits;
  if (n_candidates == 0) {
    return kNamed + asked;
  }
  auto const& config = kernel.row->config;
  auto const candidates = sentence("of ", n_candidates, " configs built for ", name(config.dtype),
                                   " with d_head ", config.d_head, " that run on sm_", gpu.sm_arch);
  auto const chosen = sentence("rank ", kernel.row->rank, ", ", n_ctas, " CTAs", asked);
  switch (rule) {
    case 1:
      return sentence(candidates, " the first in rank of those with the smallest B_r, which holds ",
                      "all queries: ", chosen);
    case 2:
      return sentence(candidates, " the first in rank whose grid fills the ", gpu.n_sms,
                      " SMs: ", chosen);
    default:
      return sentence(candidates, " none has a grid that fills the ", gpu.n_sms,
                      " SMs; the first in rank of those with the smallest B_r: ", chosen);
  }
}

GpuSelection select_on_gpu(Problem const& problem, Gpu const& gpu, std::string_view named) {
  ForwardParams const& params = problem.params;
  GpuSelection selection{.gpu = gpu, .splits_asked_for = problem.num_splits > 0};
  if (!named.empty()) {
    selection.kernel = named_kernel(named, problem, gpu);
  } else {
    Candidates const& candidates = candidates_for({problem.dtype, params.d_head, gpu.sm_arch});
    if (candidates.count == 0) {
      refuse_without_candidates(problem, gpu);
    }
    selection.n_candidates = candidates.count;
    std::tie(selection.rule, selection.kernel) =
        choose(candidates.first_of_each_B_r, params, gpu.n_sms);
  }
  auto const& config = selection.kernel.row->config;
  selection.n_ctas = count_ctas(params, config);
  selection.n_key_blocks = count_key_blocks(params, config);
  if (problem.num_splits > 0) {
    selection.num_splits = problem.num_splits;
  } else {
    int64_t const n_rows = int64_t(params.cu_seqlens_q ? params.total_q : params.seqlen_q) *
                           (params.cu_seqlens_q ? 1 : params.batch) * params.heads;
    selection.num_splits = choose_num_splits({.n_ctas = selection.n_ctas,
                                              .n_slots = count_slots(*selection.kernel.row, gpu),
                                              .n_key_blocks = selection.n_key_blocks,
                                              .n_outputs = n_rows * params.d_head});
  }
  return selection;
}

CpuSelection select_on_cpu(Problem const& problem, std::string_view named) {
  if (!named.empty()) {
    return {named_config(named, problem), kNamed};
  }
  Candidates const& candidates =
      candidates_for({problem.dtype, problem.params.d_head, /*sm_arch=*/0});
  if (candidates.count > 0) {
    return {
        candidates.first_of_each_B_r.front().row->config,
        "the first in rank of those built for this dtype and d_head; on the CPU any would run, in "
        "one pass"};
  }
  return {default_config(problem),
          "the default on the CPU, in one pass: no config is built for this dtype and d_head"};
}

}  // namespace pyflash
