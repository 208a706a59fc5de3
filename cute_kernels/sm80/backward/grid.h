// The grid of the family's kernels, and the problems that have none.
#pragma once

#include <cstdint>

#include "cute_kernels/sm80/backward/problem.h"

namespace pyflash::sm80::backward {

// For each block of keys of each head of K and V of a slice, a CTA or as many as divide its query heads, all in grid.x.
inline int64_t n_ctas(FlashBackwardKernelConfig const& config, BackwardParams const& problem) {
  return n_key_blocks(problem, config.B_c) * problem.heads_of_slice * problem.ctas_of_group;
}

inline char const* refusal(FlashBackwardKernelConfig const& config, BackwardParams const& problem) {
  constexpr int64_t kMost = (int64_t(1) << 31) - 1;
  if (n_ctas(config, problem) > kMost) {
    return "it has 2^31 or more tiles of keys";
  }
  if (problem.n_workspace_rows() > kMost) {
    return "it has 2^31 or more queries, counting those of each head";
  }
  return nullptr;
}

}  // namespace pyflash::sm80::backward
