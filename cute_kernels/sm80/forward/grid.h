// The grid of the family's kernels.
#pragma once

#include <cstdint>

#include "cute_kernels/common/sequence.h"

namespace pyflash::sm80 {

// One CTA per (Q block, split, head, batch), all in grid.x: no limit of 65535 on heads or batches.
inline int64_t n_ctas(Sequences const& q, int block_rows, int num_splits, int heads, int batch) {
  int64_t const n_m_blocks = q.most_blocks(block_rows);
  return n_m_blocks * num_splits * heads * batch;
}

}  // namespace pyflash::sm80
