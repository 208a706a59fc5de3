// What a launch hands to the main kernel: tensor maps, the problem, the order of its tiles.
#pragma once

#include <cuda.h>
#include <cute/numeric/math.hpp>

#include "cute_kernels/backward_params.h"
#include "cute_kernels/common/divisor.h"

namespace pyflash::sm90::backward {

// Tiles are key blocks, or a part of the columns of one. Those of a section of heads, whose Q, dO and dQ have room in L2 together or
// nearly so (rows_at_a_time in plan.h), go from the first key block to the last: under a right window from the longest to the shortest.
// Deterministic kernels go in the order in which dQ is summed, first_keys_first: a CTA waits for those with lower indices alone, which
// start before it.
struct TileOrder {
  int n_tiles;
  int last_section;  // its number
  Divisor by_section_tiles;
  Divisor by_section;  // heads of a section
  Divisor by_last_section;
  Divisor by_heads;  // of k and v
  int n_blocks;      // of a head

  // The tile that starts as number `index`. head: of k and v, those of all batches.
  CUTE_HOST_DEVICE void find(int& n_block, int& head, int index) const {
    int const section = cute::min(by_section_tiles.div(index), last_section);
    int const in_section = index - section * by_section_tiles.divisor;
    if (section == last_section) {
      by_last_section(n_block, head, in_section);
    } else {
      by_section(n_block, head, in_section);
    }
    head += section * by_section.divisor;
  }
};

struct KernelParams {
  CUtensorMap q_map;   // (d_head, seqlen_q, heads, batch)
  CUtensorMap do_map;  // (d_head, seqlen_q, heads, batch)
  CUtensorMap k_map;   // (d_head, seqlen_k, heads_kv, batch)
  CUtensorMap v_map;   // (d_head, seqlen_k, heads_kv, batch)
  AttentionGradients problem;
  TileOrder order;
  Dropout dropout;
  int cluster;  // CTAs of a tile, at most max_cluster(): each goes through some query heads of the group
  // Of k and v, counted through all batches: where the slice of heads begins. Kernels of which slices are problems do not read it.
  int first_head;
};

}  // namespace pyflash::sm90::backward
