// The built configs of op forward that can run a problem: the one that is named, or all. Where none can, the refusal says what
// is built and what to build.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cute_kernels/host/candidates.h"
#include "cute_kernels/host/problem.h"

namespace pyflash {

CandidatesKey key_of(Problem const& problem, Gpu const& gpu);

// Refuses a config that is not for the problem's dtype and d_head.
ConfigOf<Forward> named_config(std::string_view text, Problem const& problem);

// Candidates, and which of them accept a problem. Valid until this thread asks again.
struct Contenders {
  Candidates const& candidates;
  std::vector<bool> accepts;  // by their index; one at least does
  std::string passed_over;    // why the first of by_rank that refuses does; "": none refuses
};

Contenders contenders_for(Problem const& problem, Gpu const& gpu);

// The config that is named. Refuses one that cannot run the problem on the GPU.
Candidate named_candidate(std::string_view text, Problem const& problem, Gpu const& gpu);

// What the CPU runs where nothing is built, and what to build for a GPU: of the smallest d_head that is large enough.
// nullptr: none is.
ConfigOf<Forward> const* fallback_config(CandidatesKey const& key);

}  // namespace pyflash
