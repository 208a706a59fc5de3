// What a launch hands to the kernel: tensor maps, the problem, the order of its tiles.
#pragma once

#include <cuda.h>

#include "cute_kernels/common/divisor.h"
#include "cute_kernels/params.h"
#include "cute_kernels/variant/kernel_params.h"

namespace pyflash::sm90 {

// Tiles are numbered; a number is taken apart by these. A head is one of K and V where query heads are packed. Splits are tiles,
// unless they are a cluster.
//
// Neighbouring tiles share a head, so that its K and V stay in L2. For masks that leave the last Q blocks the most to do,
// the tiles of a section of heads, whose K and V have room in L2 together, go from the last Q block to the first.
struct TileOrder {
  int n_tiles;
  int section;       // heads, batches and splits in a section; the last may have more or fewer
  int last_section;  // the number of the last section
  int longest;       // the M block with the most keys, 0 or the last: the first one under a mask
  Divisor by_m_blocks;
  Divisor by_splits;
  Divisor by_heads;
  Divisor by_section_tiles;  // of a section
  Divisor by_section;
  Divisor by_last_section;
  Divisor by_group;  // query heads per head of K and V

  // Where tiles are listed, sections are of heads and splits, in each of which the listed tiles follow each other.
  int const* list;  // common/tile_list.h; nullptr: there is none
  int n_rest;       // heads and splits of a listed tile
};

// Persistent CTAs begin each section of heads `step` CTAs further on than the one before. Without that the same CTAs would take the
// tiles that are long by their place in every section.
struct Turns {
  int step = 0;
  Divisor by_ctas;
};

// Where each CTA has an equal share of the keys.
struct ShareOrder {
  int const* list;     // common/shares.h
  int n_heads;         // of a sequence's tiles
  Divisor by_tiles;    // of a sequence, in a line of heads abreast
  Divisor by_abreast;  // heads
  Divisor by_shares;   // of a line
  // Where all tiles are alike: into how many parts there is room to cut each, and how many a CTA has that are whole.
  Divisor by_parts;
  int whole_tiles;
  int rows_of_part;
  bool runs_beside;  // the kernel before it

  // The tag of this launch, which nothing else has stored, of parts that the CTA of a tile's last part merges. 0: another kernel
  // merges, and there is a list.
  uint64_t tag;
};

// Where a row of K, or of V, in pages begins: in steps that divide the strides, so that 32 bits count them.
struct RowSteps {
  uint32_t bytes;
  uint32_t of_page;
  uint32_t of_row;
};
inline constexpr uint32_t kNoRow = 0xffffffffu;  // as their number: none is there

struct KernelParams {
  CUtensorMap q_map;  // (d_head, group, seqlen_q, heads, batch)
  CUtensorMap k_map;  // (d_head, seqlen_k, heads_kv, batch); of pages (d_head, row, heads_kv, page)
  CUtensorMap v_map;  // as k_map
  ForwardParamsWithoutPages problem;
  TileOrder order;
  Pages pages;        // NOTE: at the end, so that kernels without pages stay as they are
  ShareOrder shares;  // NOTE: so, too
  Dropout dropout;    // NOTE: so, too

  // Where rows are gathered. NOTE: so, too
  Divisor by_page;  // keys
  RowSteps k_steps;
  RowSteps v_steps;

  Turns turns;  // NOTE: so, too

  PYFLASH_HOST_DEVICE KvSource kv() const {
    KvSource source = problem.kv();
    source.pages = pages;
    return source;
  }
};

using variant::NoVariant;
// With what a variant captures.
template <class Variant>
using ParamsWith = variant::ParamsOf<KernelParams, Variant>;

}  // namespace pyflash::sm90
