// The grid of the family's kernels.
#pragma once

#include <cstdint>

#include "cute_kernels/params.h"

namespace pyflash::sm80 {

// One CTA per (Q block, split, head, batch), or listed tile, split and head, all in grid.x: no limit of 65535 on heads or batches.
inline int64_t n_ctas(ListedForwardParams const& params, int block_rows) {
  int64_t const n_blocks =
      params.has_tile_list() ? params.tile_listing().most_tiles()
                             : int64_t(params.q_sequences().most_blocks(block_rows)) * params.batch;
  return n_blocks * params.num_splits * params.heads;
}

}  // namespace pyflash::sm80
