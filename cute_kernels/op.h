// What an op is made of. An op is a type, which the header that its record in pyflash/config names defines, with
//   kName            as Python calls it
//   Params           a problem as its kernels see it
//   Features         what its kernels can do; features_needed(params, d_head of a config) is what a problem needs
//   Shape            what of a config selection looks at
//   kPhases          its kernels, in the order in which they run
//   workspace(params), kWorkspace
//                    the memory that they need beside the outputs, and what it is for, in words
#pragma once

#include <cstdint>

#include "cute_kernels/config.h"

namespace pyflash {

// The configs of an op's families.
template <class Op>
using ConfigOf = typename ConfigsOf<Op>::Any;

// A kernel of an op that is the same for every config; without a launch, the config's own.
template <class Params>
struct Phase {
  bool (*is_needed)(Params const& params) = nullptr;  // nullptr: by every problem
  int (*launch)(Params const& params, DType dtype, void* stream) = nullptr;  // a cudaError_t
};

// Calls run(params) for each slice of a problem, of an op that runs problems in slices, else for all of it. Returns its first error.
template <class Params, class Run>
int run_slices(Params const& params, Run const& run) {
  if constexpr (requires { params.slice(0); }) {
    for (int i = 0; i < params.n_slices(); ++i) {
      if (int const error = run(params.slice(i))) {
        return error;
      }
    }
    return 0;
  } else {
    return run(params);
  }
}

// A part of an op's workspace.
template <class Params>
struct Buffer {
  float* Params::* pointer;
  int64_t n_elements;
};

}  // namespace pyflash
