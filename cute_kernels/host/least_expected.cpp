#include "cute_kernels/host/least_expected.h"

#include <algorithm>

namespace pyflash {
namespace {

CostedChoice least_of_all(Candidates const& candidates, Problem const& problem, Gpu const& gpu,
                          ConfigMapRow<Forward> const* rule) {
  ForwardParams const& params = problem.params;
  ProblemKind const kind = kind_of(params);
  CostedChoice best{};
  bool knows_rule = false;
  for (PricedKernel const& priced : candidates.priced) {
    ConfigMapRow<Forward> const& row = *priced.kernel.row;
    if (priced.kind != kind || refusal(row, params)) {
      continue;
    }
    knows_rule = knows_rule || &row == rule;
    double const time =
        expected_time(priced.shape, priced.costs, params, gpu.n_sms, splits_of(problem, row, gpu));
    if (best.kernel == nullptr || time < best.time) {
      best.kernel = &priced;
      best.time = time;
    }
  }
  return knows_rule ? best : CostedChoice{};
}

// The same from what is known; no candidate refuses the problem.
CostedChoice known_least(Candidates const& candidates, Problem const& problem, Gpu const& gpu,
                         ConfigMapRow<Forward> const* rule) {
  ForwardParams const& params = problem.params;
  Sequences const q = params.q_sequences(), k = params.k_sequences();
  CostedSize const size{params.batch, params.heads, params.heads_kv, q.longest,         k.longest,
                        q.total,      k.total,      params.mask(),   problem.num_splits};
  for (CostedChoice const& known : candidates.known) {
    if (known.size == size) {
      return known;
    }
  }
  CostedChoice found = least_of_all(candidates, problem, gpu, rule);
  found.size = size;
  if (candidates.known.size() < Candidates::kMaxKnown) {
    candidates.known.push_back(found);
  } else {
    candidates.known[candidates.oldest] = found;
    candidates.oldest = (candidates.oldest + 1) % Candidates::kMaxKnown;
  }
  return found;
}

}  // namespace

CostedChoice least_expected(Candidates const& candidates, Problem const& problem, Gpu const& gpu,
                            ConfigMapRow<Forward> const* rule) {
  ProblemKind const kind = kind_of(problem.params);
  bool const all_accept = std::none_of(
      candidates.priced.begin(), candidates.priced.end(), [&](PricedKernel const& priced) {
        return priced.kind == kind && refusal(*priced.kernel.row, problem.params);
      });
  return (all_accept ? known_least : least_of_all)(candidates, problem, gpu, rule);
}

}  // namespace pyflash
