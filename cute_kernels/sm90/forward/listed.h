// The tiles of a config, as lists of blocks depend on them.
#pragma once

#include "cute_kernels/forward.h"
#include "cute_kernels/sm90/forward/plan.h"
#include "cute_kernels/variant/block_lists.h"

namespace pyflash {

inline variant::ListedProblem listed_problem(FlashForwardSm90Config const& config,
                                             Forward::Params const& problem) {
  int const group = sm90::rows_per_query(config, problem);
  return {.q = problem.q_sequences(),
          .k = problem.kv().sequences,
          .mask = problem.mask(),
          .batch = problem.batch,
          .heads = problem.heads,
          .n_queries = config.n_consumers * (sm90::kMmaM / group),
          .B_c = config.B_c,
          .group = group,
          .warpgroups = config.n_consumers,
          .k_lengths = problem.pages.lengths};
}

// Whether tiles come in an order that is made for a variant.
inline bool takes_order(FlashForwardSm90Config const&, ListedForwardParams const& problem) {
  return !problem.has_tile_list() && !problem.has_shares();
}
inline void set_variant_order(sm90::Plan& plan, FlashForwardSm90Config const& config,
                              ListedForwardParams const& problem, int const* order) {
  if (order != nullptr && plan.n_ctas > 0) {
    sm90::set_listed_order(plan.params, config, problem, plan.n_ctas);
    plan.params.order.list = order;
  }
}

}  // namespace pyflash
