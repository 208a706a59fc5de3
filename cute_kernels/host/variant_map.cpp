#include "cute_kernels/host/variant_map.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <tuple>

#include "cute_kernels/host/config_map.h"
#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/names.h"
#include "cute_kernels/host/select_backward.h"
#include "cute_kernels/host/short_form.h"

namespace pyflash {
namespace {

std::shared_mutex kernels_mutex;
// Newest first.
template <class Op>
std::vector<VariantKernelOf<Op>> kernels;

template <class Op>
void add_rows(Span<VariantRowOf<Op>> const& rows, KernelLibrary const& library) {
  std::unique_lock const lock(kernels_mutex);
  for (VariantRowOf<Op> const& row : rows) {
    kernels<Op>.insert(kernels<Op>.begin(), VariantKernelOf<Op>{&row, &library});
  }
}

int columns_compared(ConfigMapRow<Forward> const& row) { return row.d_head; }

Forward::Params fitted(Forward::Params const& params, ConfigMapRow<Forward> const&) {
  return params;
}
BackwardParams fitted(BackwardParams params, ConfigMapRow<Backward> const& row) {
  params.set_shape(with_variant(row.shape));
  return params;
}

// What comes before rank. A config for few queries is the first if one tile holds the queries of all heads that share a head of K and
// V, since it reads keys once, and the last if not.
int order_by_tiles(ConfigMapRow<Forward> const& row, Forward::Params const& params) {
  if (!row.shape.packs_heads) {
    return 1;
  }
  int64_t const group = params.heads / larger(params.heads_kv, 1);
  return group * params.q_sequences().longest <= row.shape.B_r ? 0 : 2;
}
int order_by_tiles(ConfigMapRow<Backward> const&, BackwardParams const&) { return 0; }

// Whether a row runs a problem, and with which of its combinations of features.
template <class Op>
std::optional<size_t> combination_for(ConfigMapRow<Op> const& row, DType dtype,
                                      typename Op::Params const& params) {
  if (row.dtype != dtype || row.d_head < params.d_head ||
      (row.refusal && row.refusal(row, fitted(params, row)))) {
    return std::nullopt;
  }
  typename Op::Features const needed = features_needed(params, row.d_head);
  auto const found = std::find_if(row.features.begin(), row.features.end(),
                                  [&](auto const& built) { return covers(built, needed); });
  return found == row.features.end() ? std::nullopt
                                     : std::optional<size_t>(found - row.features.begin());
}

// longest: of the sequences. key: of the row. what: the kernel's, in words.
template <class Op>
VariantKernelOf<Op> select_of(DType dtype, typename Op::Params const& params, int longest,
                              Gpu const& gpu, VariantProgram const& variant, std::string const& key,
                              std::string_view named, char const* what) {
  std::optional<ConfigOf<Op>> const wanted =
      named.empty() ? std::nullopt : std::optional(parse_short_form_of<Op>(std::string(named)));
  std::optional<VariantKernelOf<Op>> best;
  std::shared_lock const lock(kernels_mutex);
  for (VariantKernelOf<Op> kernel : kernels<Op>) {
    ConfigMapRow<Op> const& row = kernel.row->row;
    auto const combination = combination_for<Op>(row, dtype, params);
    kernel.ctas_per_sm = ctas_per_sm(row, gpu.sm_arch);
    if (key != kernel.row->key || !combination || kernel.ctas_per_sm == 0 ||
        (wanted && row.config != *wanted)) {
      continue;
    }
    kernel.features = *combination;
    auto const order = [&](VariantKernelOf<Op> const& k) {
      ConfigMapRow<Op> const& of_k = k.row->row;
      return std::tuple(columns_compared(of_k), order_by_tiles(of_k, params), of_k.rank);
    };
    if (!best || order(kernel) < order(*best)) {
      best = kernel;
    }
  }
  require_able(best.has_value(), "no kernel of ", what, " '", variant.text, "' (", key,
               ") is built for ", name(dtype), " with d_head ", params.d_head,
               named.empty() ? "" : sentence(" and config '", named, "'"), ", features ",
               name(features_needed(params, params.d_head)), " on sm_", gpu.sm_arch,
               ": pass compile=True, or set PYFLASH_JIT=1");
  require_able(longest <= best->row->most_positions, "a sequence may have ", longest,
               " rows: expected at most ", best->row->most_positions,
               " with this variant, of whose positions kernels make floats");
  return *best;
}

}  // namespace

void add_variant_rows(Span<VariantRow> const& rows, KernelLibrary const& library) {
  add_rows<Forward>(rows, library);
}
void add_variant_rows(Span<GradientRow> const& rows, KernelLibrary const& library) {
  add_rows<Backward>(rows, library);
}

VariantKernel select_variant(Problem const& problem, Gpu const& gpu, VariantProgram const& variant,
                             std::string_view named) {
  Forward::Params params = problem.params;
  params.num_splits = larger(problem.num_splits, 1);  // 0: to be chosen, and may be one
  params.cluster = 1;
  int const longest = larger(params.q_sequences().longest, params.kv().sequences.longest);
  return select_of<Forward>(problem.dtype, params, longest, gpu, variant, variant.key, named,
                            "variant");
}

GradientKernel select_gradient(DType dtype, BackwardParams const& params, Gpu const& gpu,
                               VariantProgram const& variant, std::vector<int64_t> const& summed,
                               std::string_view named) {
  std::string key = variant.key;  // as pyflash/variant/summed.py has it
  for (int64_t const place : summed) {
    key += "_" + std::to_string(place);
  }
  int const longest = larger(params.q_sequences.longest, params.k_sequences.longest);
  return select_of<Backward>(dtype, params, longest, gpu, variant, key, named,
                             summed.empty()
                                 ? "the gradients of variant"
                                 : "the gradients, with those of what is captured, of variant");
}

}  // namespace pyflash
