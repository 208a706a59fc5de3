// The tiles of a config, as lists of blocks depend on them.
#pragma once

#include "cute_kernels/config.h"
#include "cute_kernels/forward.h"
#include "cute_kernels/variant/block_lists.h"

namespace pyflash {

inline variant::ListedProblem listed_problem(FlashForwardKernelConfig const& config,
                                             Forward::Params const& problem) {
  return {.q = problem.q_sequences(),
          .k = problem.kv().sequences,
          .mask = problem.mask(),
          .batch = problem.batch,
          .heads = problem.heads,
          .n_queries = config.B_r,
          .B_c = config.B_c,
          .group = 1,
          .k_lengths = problem.pages.lengths};
}

// Tiles start in the order of their numbers.
inline bool takes_order(FlashForwardKernelConfig const&, Forward::Params const&) { return false; }

}  // namespace pyflash
