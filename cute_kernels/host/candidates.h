// The built configs that selection chooses among, kept from call to call.
#pragma once

#include <vector>

#include "cute_kernels/host/config_map.h"

namespace pyflash {

// sm_arch 0: the CPU, on which any config runs.
struct CandidatesKey {
  DType dtype;
  int d_head;
  int sm_arch;

  friend bool operator==(CandidatesKey const&, CandidatesKey const&) = default;
};

// The configs of the smallest d_head that is not below the one asked for and of which a config runs on the device.
// Selection looks at B_r and rank alone, so for each B_r the first in rank stands for all.
struct Candidates {
  int count = 0;
  std::vector<Kernel> first_of_each_B_r;  // in order of rank
};

// Valid until this thread asks again.
Candidates const& candidates_for(CandidatesKey const& key);

}  // namespace pyflash
