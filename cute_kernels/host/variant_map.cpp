#include "cute_kernels/host/variant_map.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <shared_mutex>

#include "cute_kernels/host/config_map.h"
#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/names.h"
#include "cute_kernels/host/short_form.h"

namespace pyflash {
namespace {

std::shared_mutex kernels_mutex;
std::vector<VariantKernel> kernels;  // newest first

// Whether a row runs a problem, and with which of its combinations of features.
std::optional<size_t> combination_for(ConfigMapRow<Forward> const& row, Problem const& problem) {
  if (row.dtype != problem.dtype || row.d_head < problem.params.d_head ||
      (row.refusal && row.refusal(row, problem.params))) {
    return std::nullopt;
  }
  ForwardFeatures const needed = features_needed(problem.params, row.d_head);
  auto const found = std::find_if(row.features.begin(), row.features.end(),
                                  [&](auto const& built) { return covers(built, needed); });
  return found == row.features.end() ? std::nullopt
                                     : std::optional<size_t>(found - row.features.begin());
}

}  // namespace

void add_variant_rows(Span<VariantRow> const& rows, KernelLibrary const& library) {
  std::unique_lock const lock(kernels_mutex);
  for (VariantRow const& row : rows) {
    kernels.insert(kernels.begin(), VariantKernel{&row, &library});
  }
}

VariantKernel select_variant(Problem const& problem, Gpu const& gpu, VariantProgram const& variant,
                             std::string_view named) {
  std::optional<ConfigOf<Forward>> const wanted =
      named.empty() ? std::nullopt
                    : std::optional(parse_short_form_of<Forward>(std::string(named)));
  std::optional<VariantKernel> best;
  std::shared_lock const lock(kernels_mutex);
  for (VariantKernel kernel : kernels) {
    ConfigMapRow<Forward> const& row = kernel.row->row;
    auto const combination = combination_for(row, problem);
    kernel.ctas_per_sm = ctas_per_sm(row, gpu.sm_arch);
    if (variant.key != kernel.row->key || !combination || kernel.ctas_per_sm == 0 ||
        (wanted && row.config != *wanted)) {
      continue;
    }
    kernel.features = *combination;
    auto const order = [](VariantKernel const& k) {
      return std::pair(k.row->row.d_head, k.row->row.rank);
    };
    if (!best || order(kernel) < order(*best)) {
      best = kernel;
    }
  }
  require_able(best.has_value(), "no kernel of variant '", variant.text, "' (", variant.key,
               ") is built for ", name(problem.dtype), " with d_head ", problem.params.d_head,
               named.empty() ? "" : sentence(" and config '", named, "'"), ", features ",
               name(features_needed(problem.params, problem.params.d_head)), " on sm_", gpu.sm_arch,
               ": pass compile=True, or set PYFLASH_JIT=1");
  int const longest = larger(problem.params.q_sequences().longest, problem.kv().sequences.longest);
  require_able(longest <= best->row->most_positions, "a sequence may have ", longest,
               " rows: expected at most ", best->row->most_positions,
               " with this variant, of whose positions kernels make floats");
  return *best;
}

}  // namespace pyflash
