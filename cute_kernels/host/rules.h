// Which of the contenders runs a problem of op forward. Tuned tables (tuned.h) decide first:
//   5. the first row of a table of this GPU (architecture and number of SMs) that is for the problem's class;
//   6. the config with the least expected time, by the costs in the table of the GPU of this architecture with the nearest
//      number of SMs, if they include those of the config that rules 1 to 4 take.
// A row whose config is not a candidate is no row. Where no table decides, in order of rank, without configs that have none
// where others take the problem:
//   1. if all queries, with the heads that share keys, fit in one tile of a config that packs them, the first of those, which
//      no other rule takes; if all queries fit in one block of the smallest B_r, the first of those: more rows would be idle;
// then of the preferred family, that of the first in rank,
//   2. the first whose grid of batch * heads * ceil(seqlen_q / B_r) CTAs gives every SM at least one;
//   3. but where a smaller B_r gives as many CTAs, the first of those: more rows would be idle;
//   4. if no grid is that large, the first of those with the smallest B_r: the largest grid.
#pragma once

#include "cute_kernels/host/contenders.h"

namespace pyflash {

struct Choice {
  int rule = 0;  // by its number above; 0: none chose, the config was named
  Candidate candidate;
  TunedTable const* table =
      nullptr;               // of rules 5 and 6; valid until this thread asks for candidates again
  int num_splits = 0;        // of rule 5; 0: the rule of splits.h
  double expected_time = 0;  // of rule 6, in microseconds
};

Choice choose(Contenders const& contenders, Problem const& problem, Gpu const& gpu);

}  // namespace pyflash
