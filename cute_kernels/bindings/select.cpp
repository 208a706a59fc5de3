#include "cute_kernels/bindings/select.h"

#include <algorithm>

#include "cute_kernels/bindings/candidates.h"
#include "cute_kernels/bindings/errors.h"
#include "cute_kernels/bindings/short_form.h"
#include "cute_kernels/bindings/splits.h"

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

// The first in rank that fills the GPU, or the first of the smallest B_r.
Kernel choose(std::vector<Kernel> const& kernels, ForwardParams const& params, int n_sms) {
  for (Kernel const& kernel : kernels) {
    if (count_ctas(params, kernel.row->config) >= n_sms) {
      return kernel;
    }
  }
  return *std::min_element(kernels.begin(), kernels.end(), [](Kernel const& a, Kernel const& b) {
    return a.row->config.B_r < b.row->config.B_r;
  });
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
  if (n_ctas >= gpu.n_sms) {
    return sentence(candidates, " the first in rank whose grid fills the ", gpu.n_sms,
                    " SMs: ", chosen);
  }
  return sentence(candidates, " none has a grid that fills the ", gpu.n_sms,
                  " SMs; the first in rank of those with the smallest B_r: ", chosen);
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
    selection.kernel = choose(candidates.first_of_each_B_r, params, gpu.n_sms);
  }
  auto const& config = selection.kernel.row->config;
  selection.n_ctas = count_ctas(params, config);
  selection.n_key_blocks = count_key_blocks(params, config);
  selection.num_splits =
      problem.num_splits > 0
          ? problem.num_splits
          : choose_num_splits(selection.n_ctas, selection.n_key_blocks, gpu.n_sms);
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
