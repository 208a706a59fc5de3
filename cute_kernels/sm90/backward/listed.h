// Which problems with a variant have their tiles of keys sorted.
#pragma once

#include "cute_kernels/backward_params.h"
#include "cute_kernels/config.h"

namespace pyflash {

// NOTE: blocks of packed sequences are numbered together, and dQ of deterministic kernels is summed in the order of keys.
inline bool takes_order(FlashBackwardSm90Config const&, BackwardParams const& problem) {
  return !problem.deterministic && !problem.q_sequences.is_packed() &&
         !problem.k_sequences.is_packed();
}

}  // namespace pyflash
