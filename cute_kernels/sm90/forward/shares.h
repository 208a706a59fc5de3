// The tiles of a CTA that has a share of the keys of all sequences (common/shares.h).
#pragma once

#include <type_traits>

#include <cute/tensor.hpp>

#include "cute_kernels/common/shares.h"
#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/sm90/forward/kernel_params.h"
#include "cute_kernels/sm90/forward/problem.h"

namespace pyflash::sm90 {

using namespace cute;

// The tiles, and parts of tiles, in a CTA's share of the keys. NOTE: sequences of other lengths than those that the list was made
// of have other results, and no access outside.
template <class Traits, ForwardFeatures kFeatures, class Variant = NoVariant>
struct ShareSchedule : TileSchedule<Traits, kFeatures, Variant> {
  using Base = TileSchedule<Traits, kFeatures, Variant>;

  CUTE_DEVICE explicit ShareSchedule(ParamsWith<Variant> const& params)
      : Base(params),
        left(device::load(
            reinterpret_cast<Share const*>(params.shares.list + ShareListing::kHeader) +
            device::block_idx())) {}

  CUTE_DEVICE Tile next() {
    auto const& params = this->params;
    while (left.n_units > 0 && left.sequence < params.problem.batch) {
      Tile tile;
      tile.exists = true;
      tile.first_query = 0;
      tile.head = left.head;
      tile.batch = left.sequence;
      this->find_rows(tile);
      tile.blocks = this->attended(tile, 0, Base::queries_per_warpgroup(params));
      int const n_blocks = tile.blocks.size();
      bool const is_own =
          0 < tile.q_rows.length && tile.q_rows.length <= Base::queries_per_warpgroup(params);
      int const n_units = is_own ? n_blocks + ShareListing::kTileUnits : 0;
      int const first = left.first_unit;
      int const end = min(first + left.n_units, n_units);
      advance(end, n_units);
      // Blocks, counted from the tile's first.
      int const begin_block = max(first - ShareListing::kTileUnits, 0);
      int const end_block = end - ShareListing::kTileUnits;
      tile.blocks.end = tile.blocks.begin + end_block;
      tile.blocks.begin += begin_block;
      bool const is_whole = begin_block == 0 && end_block == n_blocks;
      tile.split = is_whole
                       ? Tile::kWhole
                       : Parts::place_of(device::block_idx(), /*begins_tile=*/begin_block == 0);
      if (begin_block < end_block || (n_blocks == 0 && first == 0 && n_units > 0)) {
        return tile;
      }
    }
    return Tile{};
  }

 private:
  // Past the units of a tile, up to `end`, of n_units.
  CUTE_DEVICE void advance(int end, int n_units) {
    left.n_units -= max(end - left.first_unit, 0);
    left.first_unit = end;
    if (end >= n_units) {
      left.first_unit = 0;
      ++left.head;
      if (left.head >= this->params.shares.n_heads || n_units == 0) {
        left.head = 0;
        ++left.sequence;
      }
    }
  }

  Share left;  // what is not done of the share
};

template <class Traits, ForwardFeatures kFeatures, class Variant = NoVariant>
using ScheduleOf =
    std::conditional_t<kFeatures.equal_shares, ShareSchedule<Traits, kFeatures, Variant>,
                       TileSchedule<Traits, kFeatures, Variant>>;

}  // namespace pyflash::sm90
