#include "cute_kernels/host/select.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "cute_kernels/common/clusters.h"
#include "cute_kernels/host/candidates.h"
#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/least_expected.h"
#include "cute_kernels/host/names.h"
#include "cute_kernels/host/short_form.h"
#include "cute_kernels/host/splits.h"

namespace pyflash {
namespace {

std::pair<DType, int> key_fields(ConfigOf<Forward> const& config) {
  return std::visit([](auto const& c) { return std::pair(c.dtype, c.d_head); }, config);
}

constexpr char const* kNamed = "it was named";

int64_t count_row_blocks(ForwardParams const& params, TileShape const& shape) {
  int const group = shape.packs_heads ? params.heads / std::max(params.heads_kv, 1) : 1;
  int const n_queries = std::max(shape.B_r / std::max(group, 1), 1);
  return ceil_div(params.q_sequences().longest, n_queries);
}

// CTAs of one pass, one per Q block, head, or group of them, and batch.
int64_t count_ctas(ForwardParams const& params, TileShape const& shape) {
  int const n_heads = shape.packs_heads ? params.heads_kv : params.heads;
  return count_row_blocks(params, shape) * n_heads * params.batch;
}

std::string archs_of(RowOfAnyOp const& row) {
  return sentence("machine code for sm_", row.sm_archs,
                  row.ptx_arch ? sentence(" and PTX of compute_", row.ptx_arch) : "");
}

// What the CPU runs where nothing is built, and what to build for a GPU: of the smallest d_head that is large enough.
// nullptr: none is.
ConfigOf<Forward> const* fallback_config(Problem const& problem) {
  for (ConfigOf<Forward> const& config : ConfigsOf<Forward>::kFallbacks) {
    auto const [dtype, d_head] = key_fields(config);
    if (dtype == problem.dtype && d_head >= problem.params.d_head) {
      return &config;
    }
  }
  return nullptr;
}

std::string how_to_build(Problem const& problem, std::string_view options = "") {
  ConfigOf<Forward> const* const config = fallback_config(problem);
  return config ? sentence("; to build one: pyflash build '", short_form(any_config(*config)), "'",
                           options)
                : "";
}

ConfigOf<Forward> named_config(std::string_view text, Problem const& problem) {
  auto const config = parse_short_form_of<Forward>(text);
  auto const [dtype, d_head] = key_fields(config);
  check_config_fits(text, dtype, d_head, problem);
  return config;
}

Kernel<Forward> named_kernel(std::string_view text, Problem const& problem, Gpu const& gpu) {
  ConfigOf<Forward> const config = named_config(text, problem);
  std::optional<Kernel<Forward>> const kernel = find_kernel<Forward>(config);
  if (!kernel) {
    fail("config '", text, "' is not built: ",
         built_short_forms(built_rows<Forward>(), problem.dtype, key_fields(config).second),
         "; to build it: pyflash build '", text,
         "', or compile=True in the call; and name it as its canonical() does");
  }
  if (!runs_on(*kernel->row, gpu.sm_arch)) {
    fail("config '", text, "' is not built for this GPU, sm_", gpu.sm_arch, ": it has ",
         archs_of(*kernel->row), "; to build it: pyflash build '", text, "' --arch ", gpu.sm_arch);
  }
  ForwardFeatures const needed = features_needed(problem.params, kernel->row->d_head);
  if (!covers(*kernel->row, needed)) {
    fail("config '", text, "' is built without ", name(needed), "; to build it: pyflash build '",
         text, "' --features ", name(needed));
  }
  if (char const* const reason = refusal(*kernel->row, problem.params)) {
    fail("config '", text, "' cannot run this problem: ", reason);
  }
  return *kernel;
}

CandidatesKey key_of(Problem const& problem, Gpu const& gpu) {
  ForwardParams const& params = problem.params;
  return {problem.dtype, params.d_head, features_needed(params, params.d_head), gpu.sm_arch,
          gpu.n_sms};
}

[[noreturn]] void refuse_without_candidates(Problem const& problem, Gpu const& gpu) {
  auto const wanted =
      sentence(name(problem.dtype), " with d_head ", problem.params.d_head, " or more");
  CandidatesKey key = key_of(problem, gpu);
  auto const features = name(key.features);
  key.features = {};
  if (candidates_for(key).count > 0) {
    fail("no config for ", wanted, " is built with ", features,
         how_to_build(problem, " --features " + features));
  }
  key.sm_arch = 0;
  if (candidates_for(key).count > 0) {
    fail("no config for ", wanted, " is built for this GPU, sm_", gpu.sm_arch,
         "; to build for it: pyflash build --arch ", gpu.sm_arch);
  }
  fail("no config is built for ", wanted, ": ", built_head_dims(built_rows<Forward>()),
       how_to_build(problem));
}

// Rule 1, 2, 3 or 4 of select.h, and the kernel that it gives. `kernels`: not empty, in order of rank.
std::pair<int, Kernel<Forward>> choose(std::vector<Kernel<Forward>> const& kernels,
                                       ForwardParams const& params, int n_sms) {
  auto const holds_all_packed = [&](Kernel<Forward> const& kernel) {
    return kernel.row->shape.packs_heads && int64_t(params.q_sequences().longest) * params.heads <=
                                                int64_t(kernel.row->shape.B_r) * params.heads_kv;
  };
  auto const packing = std::find_if(kernels.begin(), kernels.end(), holds_all_packed);
  if (packing != kernels.end()) {
    return {1, *packing};
  }
  auto const order = [](Kernel<Forward> const& kernel) {
    return std::pair(kernel.row->shape.packs_heads, kernel.row->shape.B_r);
  };
  Kernel<Forward> const& smallest = *std::min_element(
      kernels.begin(), kernels.end(),
      [&](Kernel<Forward> const& a, Kernel<Forward> const& b) { return order(a) < order(b); });
  if (params.q_sequences().longest <= smallest.row->shape.B_r) {
    return {1, smallest};
  }
  auto const is_preferred = [&](Kernel<Forward> const& kernel) {
    return kernel.row->config.index() == kernels.front().row->config.index();
  };
  auto const first_if = [&](auto&& suits) {
    return std::find_if(kernels.begin(), kernels.end(), [&](Kernel<Forward> const& kernel) {
      return is_preferred(kernel) && !kernel.row->shape.packs_heads && suits(*kernel.row);
    });
  };
  auto const filling = first_if(
      [&](ConfigMapRow<Forward> const& row) { return count_ctas(params, row.shape) >= n_sms; });
  if (filling == kernels.end()) {
    Kernel<Forward> const* best = &smallest;
    for (Kernel<Forward> const& kernel : kernels) {
      bool const is_better = !is_preferred(*best) || order(kernel) < order(*best);
      best = is_preferred(kernel) && is_better ? &kernel : best;
    }
    return {4, *best};
  }
  auto const with_fewer_rows = first_if([&](ConfigMapRow<Forward> const& row) {
    return row.shape.B_r < filling->row->shape.B_r &&
           count_ctas(params, row.shape) == count_ctas(params, filling->row->shape);
  });
  return with_fewer_rows == kernels.end() ? std::pair{2, *filling} : std::pair{3, *with_fewer_rows};
}

// Rule 5. Whether it holds.
bool choose_by_class(Candidates const& candidates, Problem const& problem,
                     GpuSelection& selection) {
  ProblemSize const size = size_of(problem.params);
  for (auto const& [kernel, choice, table] : candidates.choices) {
    if (choice->holds_for(size) && !refusal(*kernel.row, problem.params)) {
      selection.rule = 5;
      selection.kernel = kernel;
      selection.table = table;
      selection.num_splits = choice->num_splits;
      return true;
    }
  }
  return false;
}

// Rule 6, which improves on the kernel that rules 1 to 4 took.
void choose_by_costs(Candidates const& candidates, Problem const& problem,
                     GpuSelection& selection) {
  CostedChoice const choice =
      least_expected(candidates, problem, selection.gpu, selection.kernel.row);
  if (choice.kernel != nullptr) {
    selection.rule = 6;
    selection.kernel = choice.kernel->kernel;
    selection.table = choice.kernel->table;
    selection.expected_time = choice.time;
  }
}

}  // namespace

ForwardFeatures features_needed(Problem const& problem, std::string_view named) {
  return features_needed(problem.params, key_fields(named_config(named, problem)).second);
}

int splits_by_rule(ForwardParams const& params, TileShape const& shape, int ctas_per_sm,
                   int n_sms) {
  Sequences const q = params.q_sequences();
  int64_t const n_rows = int64_t(q.tensor_rows()) * q.tensor_batches(params.batch) * params.heads;
  return choose_num_splits({.n_ctas = count_ctas(params, shape),
                            .n_row_blocks = count_row_blocks(params, shape),
                            .n_slots = int64_t(n_sms) * ctas_per_sm,
                            .n_key_blocks = count_key_blocks(params, shape.B_r, shape.B_c),
                            .n_outputs = n_rows * params.d_head,
                            .B_c = shape.B_c,
                            .n_sms = n_sms,
                            .max_cluster = shape.max_cluster});
}

int splits_of(Problem const& problem, ConfigMapRow<Forward> const& row, Gpu const& gpu) {
  return problem.num_splits > 0
             ? problem.num_splits
             : splits_by_rule(problem.params, row.shape, ctas_per_sm(row, gpu.sm_arch), gpu.n_sms);
}

std::string GpuSelection::reason() const {
  std::string const splits = num_splits == 1
                                 ? sentence("; its ", n_key_blocks, " blocks of keys in one pass")
                                 : sentence("; its ", n_key_blocks, " blocks of keys in ",
                                            num_splits, " splits, ", n_ctas * num_splits, " CTAs");
  std::string const asked = splits_asked_for ? sentence(splits, ", as asked for") : splits;
  if (n_candidates == 0) {
    return kNamed + asked;
  }
  auto const candidates =
      sentence("of ", n_candidates, " configs built for ", name(kernel.row->dtype), " with d_head ",
               kernel.row->d_head, " that run on sm_", gpu.sm_arch);
  auto const chosen =
      sentence("rank ", kernel.row->rank, ", ", n_ctas, " CTAs", asked, passed_over);
  switch (rule) {
    case 1:
      return sentence(candidates, " the first in rank of those with the smallest B_r, which holds ",
                      "all queries: ", chosen);
    case 2:
      return sentence(candidates, " the first in rank whose grid fills the ", gpu.n_sms,
                      " SMs: ", chosen);
    case 3:
      return sentence(
          candidates, " the first in rank whose grid fills the ", gpu.n_sms,
          " SMs with as few CTAs as a larger B_r, of which more rows would be idle: ", chosen);
    case 4:
      return sentence(candidates, " none has a grid that fills the ", gpu.n_sms,
                      " SMs; the first in rank of those with the smallest B_r",
                      " in its family: ", chosen);
    case 5:
      return sentence(candidates, " the fastest measured for this class of problems, by the table ",
                      table->name, ": ", chosen);
    default:
      return sentence(candidates, " the least expected time, ", std::llround(expected_time),
                      " us, by the costs in the table ", table->name, ": ", chosen);
  }
}

GpuSelection select_on_gpu(Problem const& problem, Gpu const& gpu, std::string_view named) {
  ForwardParams const& params = problem.params;
  GpuSelection selection{.gpu = gpu, .splits_asked_for = problem.num_splits > 0};
  if (!named.empty()) {
    selection.kernel = named_kernel(named, problem, gpu);
  } else {
    Candidates const& candidates = candidates_for(key_of(problem, gpu));
    auto const refuses = [&](Kernel<Forward> const& kernel) {
      return refusal(*kernel.row, params);
    };
    auto const refusing =
        std::find_if(candidates.kernels.begin(), candidates.kernels.end(), refuses);
    std::vector<Kernel<Forward>> accepting;  // a copy, where one refuses
    if (refusing != candidates.kernels.end()) {
      selection.passed_over =
          sentence("; passed over ", refusing->row->short_form, ": ", refuses(*refusing));
      accepting = candidates.kernels;
      std::erase_if(accepting, refuses);
    }
    auto const& kernels = selection.passed_over.empty() ? candidates.kernels : accepting;
    if (kernels.empty()) {
      require_able(candidates.count == 0, "none of the configs built for ", name(problem.dtype),
                   " with d_head ", params.d_head, " runs this problem", selection.passed_over);
      refuse_without_candidates(problem, gpu);
    }
    selection.n_candidates = candidates.count;
    if (!choose_by_class(candidates, problem, selection)) {
      std::tie(selection.rule, selection.kernel) = choose(kernels, params, gpu.n_sms);
      choose_by_costs(candidates, problem, selection);
    }
  }
  ConfigMapRow<Forward> const& row = *selection.kernel.row;
  selection.n_ctas = count_ctas(params, row.shape);
  selection.n_key_blocks = count_key_blocks(params, row.shape.B_r, row.shape.B_c);
  if (selection.num_splits == 0 || selection.splits_asked_for) {
    selection.num_splits = splits_of(problem, row, gpu);
  }
  selection.cluster = cluster_of(selection.num_splits, row.shape.max_cluster, selection.n_ctas,
                                 int64_t(gpu.n_sms) * ctas_per_sm(row, gpu.sm_arch));
  return selection;
}

CpuSelection select_on_cpu(Problem const& problem, std::string_view named) {
  if (!named.empty()) {
    return {named_config(named, problem), kNamed};
  }
  Candidates const& candidates = candidates_for(key_of(problem, Gpu{}));
  if (candidates.count > 0) {
    return {
        candidates.kernels.front().row->config,
        "the first in rank of those built for this dtype and d_head; on the CPU any would run, in "
        "one pass"};
  }
  ConfigOf<Forward> const* const fallback = fallback_config(problem);
  require(fallback, "no config is for ", name(problem.dtype), " with d_head ",
          problem.params.d_head);
  return {*fallback,
          "the default on the CPU, in one pass: no config is built for this dtype and d_head"};
}

}  // namespace pyflash
