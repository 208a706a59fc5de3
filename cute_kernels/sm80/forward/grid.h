// The grid of the family's kernels.
#pragma once

#include <cstdint>

#include "cute_kernels/params.h"

namespace pyflash::sm80 {

// One CTA per (Q block, split, head, batch), all in grid.x: no limit of 65535 on heads or batches.
inline int64_t n_ctas(ForwardParams const& params, int block_rows) {
  int64_t const n_m_blocks = params.q_sequences().most_blocks(block_rows);
  return n_m_blocks * params.num_splits * params.heads * params.batch;
}

}  // namespace pyflash::sm80
