// The tiles of a backward, as a variant's lists and tables depend on them.
#pragma once

#include "cute_kernels/backward_params.h"
#include "cute_kernels/variant/block_lists.h"

namespace pyflash::variant {

// n_queries: of a block. B_c: of the config.
constexpr ListedProblem gradient_problem(BackwardParams const& problem, int n_queries, int B_c) {
  return {.q = problem.q_sequences,
          .k = problem.k_sequences,
          .mask = problem.mask,
          .batch = problem.batch,
          .heads = problem.heads,
          .n_queries = n_queries,
          .B_c = B_c,
          .group = 1};
}
// Where tables have entries. NOTE: kernels visit whole pieces of queries.
constexpr ListedProblem prepared_problem(BackwardParams const& problem, int B_r, int B_c) {
  return gradient_problem(problem, larger(B_r, kQueriesOfPiece), B_c);
}

}  // namespace pyflash::variant
