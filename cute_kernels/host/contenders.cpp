#include "cute_kernels/host/contenders.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/names.h"
#include "cute_kernels/host/short_form.h"

namespace pyflash {
namespace {

std::pair<DType, int> key_fields(ConfigOf<Forward> const& config) {
  return std::visit([](auto const& c) { return std::pair(c.dtype, c.d_head); }, config);
}

std::string archs_of(RowOfAnyOp const& row) {
  return sentence("machine code for sm_", row.sm_archs,
                  row.ptx_arch ? sentence(" and PTX of compute_", row.ptx_arch) : "");
}

bool suits(ConfigOf<Forward> const& config, CandidatesKey const& key) {
  auto const [dtype, d_head] = key_fields(config);
  return dtype == key.dtype && d_head >= key.d_head;
}

std::string how_to_build(CandidatesKey const& key, std::string_view options = "") {
  if (key.features.dropout) {
    return "; to build them: pyflash build --set dropout";
  }
  for (ConfigOf<Forward> const& config : ConfigsOf<Forward>::kFallbacks) {
    // NOTE: they are of the SM80 family, which does not share keys.
    if (suits(config, key) && !key.features.equal_shares) {
      return sentence("; to build one: pyflash build '", short_form(any_config(config)), "'",
                      options);
    }
  }
  return "";
}

void refuse_without_contenders(Contenders const& contenders, CandidatesKey const& asked) {
  auto const dtype = name(asked.dtype);
  int const d_head = asked.d_head;
  if (std::count(contenders.accepts.begin(), contenders.accepts.end(), true) > 0) {
    return;
  }
  if (!contenders.accepts.empty()) {
    fail("none of the configs built for ", dtype, " with d_head ", d_head, " runs this problem",
         contenders.passed_over);
  }
  CandidatesKey plain = asked, anywhere = asked;
  plain.features = anywhere.features = {};
  anywhere.sm_arch = 0;
  auto const is_built = [](CandidatesKey const& key) { return !candidates_for(key).all.empty(); };
  if (is_built(plain)) {
    auto const features = name(asked.features);
    fail("no config for ", dtype, " with d_head ", d_head, " or more is built with ", features,
         how_to_build(asked, " --features " + features));
  }
  if (is_built(anywhere)) {
    fail("no config for ", dtype, " with d_head ", d_head, " or more is built for this GPU, sm_",
         asked.sm_arch, "; to build for it: pyflash build --arch ", asked.sm_arch);
  }
  fail("no config is built for ", dtype, " with d_head ", d_head,
       " or more: ", built_head_dims(built_rows<Forward>()), how_to_build(asked));
}

}  // namespace

ConfigOf<Forward> const* fallback_config(CandidatesKey const& key) {
  auto const& fallbacks = ConfigsOf<Forward>::kFallbacks;
  auto const found = std::find_if(std::begin(fallbacks), std::end(fallbacks),
                                  [&](auto const& config) { return suits(config, key); });
  return found == std::end(fallbacks) ? nullptr : &*found;
}

CandidatesKey key_of(Problem const& problem, Gpu const& gpu) {
  auto const& params = problem.params;
  return {problem.dtype, params.d_head, features_needed(params, params.d_head), gpu.sm_arch,
          gpu.n_sms};
}

ConfigOf<Forward> named_config(std::string_view text, Problem const& problem) {
  auto const config = parse_short_form_of<Forward>(text);
  auto const [dtype, d_head] = key_fields(config);
  check_config_fits(text, dtype, d_head, problem);
  return config;
}

Candidate named_candidate(std::string_view text, Problem const& problem, Gpu const& gpu) {
  ConfigOf<Forward> const config = named_config(text, problem);
  CandidatesKey const key = key_of(problem, gpu);
  std::optional<Kernel<Forward>> const kernel = find_kernel<Forward>(config);
  if (!kernel) {
    fail("config '", text, "' is not built: ",
         built_short_forms(built_rows<Forward>(), key.dtype, key_fields(config).second),
         "; to build it: pyflash build '", text,
         "', or compile=True in the call; and name it as its canonical() does");
  }
  ConfigMapRow<Forward> const& row = *kernel->row;
  Fit const fit = fit_of(row, key);
  switch (fit.lack) {
    case Fit::Lack::kNothing:
      break;
    case Fit::Lack::kCodeForGpu:
      fail("config '", text, "' is not built for this GPU, sm_", gpu.sm_arch, ": it has ",
           archs_of(row), "; to build it: pyflash build '", text, "' --arch ", gpu.sm_arch);
    case Fit::Lack::kFeatures: {
      auto const features = name(in_config(key.features, key.d_head, row.d_head));
      fail("config '", text, "' is built without ", features, "; to build it: pyflash build '",
           text, "' --features ", features);
    }
  }
  if (char const* const reason = kernel->refuses(problem.params)) {
    fail("config '", text, "' cannot run this problem: ", reason);
  }
  return {*kernel, fit.ctas_per_sm};
}

Contenders contenders_for(Problem const& problem, Gpu const& gpu) {
  CandidatesKey const key = key_of(problem, gpu);
  Contenders contenders{.candidates = candidates_for(key), .accepts = {}, .passed_over = {}};
  auto const& all = contenders.candidates.all;
  auto const& by_rank = contenders.candidates.by_rank;
  for (Candidate const& candidate : all) {
    contenders.accepts.push_back(candidate.kernel.refuses(problem.params) == nullptr);
  }
  auto const refusing = std::find_if(by_rank.begin(), by_rank.end(),
                                     [&](size_t i) { return !contenders.accepts[i]; });
  if (refusing != by_rank.end()) {
    Kernel<Forward> const& kernel = all[*refusing].kernel;
    contenders.passed_over =
        sentence("; passed over ", kernel.row->short_form, ": ", kernel.refuses(problem.params));
  }
  refuse_without_contenders(contenders, key);
  return contenders;
}

}  // namespace pyflash
