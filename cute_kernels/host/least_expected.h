// Rule 6 of select.h: the candidate with the least expected time.
#pragma once

#include "cute_kernels/host/candidates.h"
#include "cute_kernels/host/problem.h"
#include "cute_kernels/host/select.h"

namespace pyflash {

// No kernel, unless the costs include those of `rule`, which rules 1 to 4 took.
CostedChoice least_expected(Candidates const& candidates, Problem const& problem, Gpu const& gpu,
                            ConfigMapRow<Forward> const* rule);

}  // namespace pyflash
