// The tiles of a CTA that has an equal share of the keys of all sequences.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cute_kernels/common/shares.h"
#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/sm90/forward/cta_share.h"
#include "cute_kernels/sm90/forward/kernel_params.h"
#include "cute_kernels/sm90/forward/merge_parts.h"
#include "cute_kernels/sm90/forward/problem.h"

namespace pyflash::sm90 {

// The tiles, and parts of tiles, in a CTA's share of the keys. NOTE: sequences of other lengths than those that a list was made
// of have other results, and no access outside.
template <class Traits, ForwardFeatures kFeatures, class Variant = NoVariant>
struct ShareSchedule : TileSchedule<Traits, kFeatures, Variant> {
  using Base = TileSchedule<Traits, kFeatures, Variant>;

  CUTE_DEVICE ShareSchedule(ParamsWith<Variant> const& params, CtaShare const& own)
      : ShareSchedule(params, device::load(&own.share)) {}

  // By a warp: the share of this CTA, as write_shares lists it, or, where all tiles are alike and it takes less time, as many
  // whole tiles, or as many parts of a tile, as all others have.
  // NOTE: nothing is loaded before, so that each instruction counts.
  CUTE_DEVICE static void find(ParamsWith<Variant> const& params, CtaShare& own) {
    ShareOrder const& shares = params.shares;
    ShareSchedule const schedule(params, Share{});
    int const batch = params.problem.batch;
    int const lane = device::thread_idx() % 32;
    int const n_of_lane = (batch + 31) / 32;
    int const first = min(lane * n_of_lane, batch);
    int const end = min(first + n_of_lane, batch);
    Tile tile;
    // NOTE: without a branch about it, so that the place is found while the length comes.
    int const n_units_of_first = schedule.find_tile(tile, min(first, batch - 1));
    Place const place = schedule.place_among_like();
    Units units{first < end ? n_units_of_first : 0, n_units_of_first, n_units_of_first};
#pragma unroll 4  // so that a lane asks for several lengths at a time
    for (int sequence = first + 1; sequence < end; ++sequence) {
      int const n_units = schedule.find_tile(tile, sequence);
      units.sum += n_units;
      units.least = min(units.least, n_units);
      units.most = max(units.most, n_units);
    }
    int const like = int(device::bits_of_group<32>(uint32_t(n_units_of_first), 0));
    bool const is_unlike = units.least != like || units.most != like;
    if (!device::any_lane(is_unlike) && schedule.find_among_like(own, place, like, lane)) {
      return;
    }
    int all = units.sum;
    int start = add_lanes(all, lane);
    int const n_tiles = shares.by_tiles.divisor;
    int const total = all * n_tiles;
    int const size =
        max(shares.by_shares.div(total + shares.by_shares.divisor - 1), ShareListing::kLeastUnits);
    int const begin = schedule.number() * size;
    start *= n_tiles;
    if (lane == 0 && begin >= total) {
      device::store(&own.share, Share{});
    }
    if (start <= begin && begin < start + units.sum * n_tiles) {
      int sequence = first;
      int n_units = n_units_of_first;
      while (begin - start >= n_units * n_tiles) {
        start += n_units * n_tiles;
        ++sequence;
        n_units = schedule.find_tile(tile, sequence);
      }
      int const i_tile = n_tiles == 1 ? 0 : (begin - start) / n_units;
      device::store(&own.share, Share{.sequence = sequence,
                                      .head = i_tile * shares.by_abreast.divisor,
                                      .first_unit = begin - start - i_tile * n_units,
                                      .n_units = min(size, total - begin)});
      device::store(&own.place, CtaShare::Place{begin, size, n_units, 0});
    }
  }
  // By a warp, before anything is known of sequences: has L2 fetch their lengths, and the pages of this CTA's first tile if all tiles
  // are alike, so that these need not wait for the lengths. Reads nothing.
  CUTE_DEVICE static void prefetch(ParamsWith<Variant> const& params) {
    constexpr int kLine = 32;  // ints of a line of L2
    auto const& problem = params.problem;
    ShareSchedule const schedule(params, Share{});
    int const lane = device::thread_idx() % 32;
    Sequences const q = problem.q_sequences(), k = problem.kv().sequences;
    if (lane * kLine < problem.batch) {
      if (q.is_packed()) {
        device::prefetch(q.starts + lane * kLine);
      }
      if constexpr (kFeatures.paged_kv) {
        device::prefetch(params.pages.lengths + lane * kLine);
      } else if (k.is_packed()) {
        device::prefetch(k.starts + lane * kLine);
      }
    }
    if constexpr (kFeatures.paged_kv) {
      int const n_entries = params.by_page.div(k.longest + params.pages.size - 1);
      Place const place = schedule.place_among_like();
      if (lane * kLine < n_entries && place.n_whole > 0) {
        device::prefetch(params.pages.table + place.sequence * params.pages.table_stride +
                         lane * kLine);
      }
    }
  }
  // By a thread: from the list.
  CUTE_DEVICE static void read(ParamsWith<Variant> const& params, CtaShare& own) {
    auto const* const listed =
        reinterpret_cast<Share const*>(params.shares.list + ShareListing::kHeader);
    device::store(&own.share,
                  device::load(listed + params.shares.by_abreast.div(device::block_idx())));
  }

  CUTE_DEVICE Tile next() {
    auto const& params = this->params;
    while (left.n_units > 0 && left.sequence < params.problem.batch) {
      Tile tile;
      tile.exists = true;
      tile.first_query = 0;
      tile.head = left.head + index_of_head();
      int const n_units = find_tile(tile, left.sequence);
      int const n_blocks = tile.blocks.size();
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

  // What this CTA merges. own: that was found.
  CUTE_DEVICE Merge merge_of(CtaShare const& own) const {
    Share const share = device::load(&own.share);
    if (share.n_units == 0 || share.first_unit <= ShareListing::kTileUnits) {
      return Merge{};  // it continues no tile
    }
    CtaShare::Place const place = device::load(&own.place);
    int const start = place.begin - share.first_unit;
    int const first = (start + ShareListing::kTileUnits) / place.size;
    int const part = place.begin / place.size - first;
    int const last = (start + place.n_units_of_tile - 1) / place.size - first;
    int const abreast = this->params.shares.by_abreast.divisor;
    return {.parts = {.sequence = share.sequence,
                      .head = share.head + index_of_head(),
                      .first = device::block_idx() - part * abreast,
                      .abreast = abreast,
                      .n = last + 1},
            .part = part};
  }

 private:
  CUTE_DEVICE ShareSchedule(ParamsWith<Variant> const& params, Share const& share)
      : Base(params, CtaShare{}), left(share) {}

  // The units of some sequences, counted by one tile of each.
  struct Units {
    int sum;
    int least;
    int most;
  };
  // Makes `sum` that of all lanes, and returns that of the lanes before this one.
  CUTE_DEVICE static int add_lanes(int& sum, int lane) {
    int before = 0;
    CUTE_UNROLL
    for (int mask = 1; mask < 32; mask *= 2) {
      int const other = int(device::shfl_xor_bits(uint32_t(sum), mask));
      before += (lane & mask) != 0 ? other : 0;
      sum += other;
    }
    return before;
  }

  // Where this CTA begins if all tiles are alike, which follows from extents alone.
  struct Place {
    int sequence;
    int head;
    int part;     // of the tile
    int n_whole;  // tiles, of which a part is one; 0: there is nothing to do
  };
  CUTE_DEVICE Place place_among_like() const {
    ShareOrder const& shares = this->params.shares;
    int const n_tiles = this->params.problem.batch * shares.by_tiles.divisor;
    Place place;
    int tile;
    shares.by_parts(tile, place.part, number());
    tile *= shares.whole_tiles;  // NOTE: 1 where tiles are cut
    place.n_whole = max(min(shares.whole_tiles, n_tiles - tile), 0);
    shares.by_tiles(place.sequence, place.head, tile);
    place.head *= shares.by_abreast.divisor;
    // NOTE: else the compiler finds them where they are used.
    device::keep(place.sequence);
    device::keep(place.head);
    device::keep(place.part);
    device::keep(place.n_whole);
    return place;
  }

  // The same where every tile has n_units. Returns whether equal shares would not take less time. By a warp.
  CUTE_DEVICE bool find_among_like(CtaShare& own, Place const& place, int n_units, int lane) const {
    // What a tile takes longer that is cut, and one more that is merged.
    constexpr int kCut = 1, kMerge = 2;
    constexpr int kTileUnits = ShareListing::kTileUnits;
    ShareOrder const& shares = this->params.shares;
    int const n_tiles = this->params.problem.batch * shares.by_tiles.divisor;
    int const n_parts = shares.by_parts.divisor;
    bool const is_cut = n_parts > 1;
    int const n_blocks = n_units - kTileUnits;
    int const of_equal =
        shares.by_shares.div(n_tiles * n_units + shares.by_shares.divisor - 1) + kCut;
    // Blocks of a part: the unit that a tile has beside these takes no time of memory.
    int const size = shares.by_parts.div(max(n_blocks, 0) + n_parts - 1);
    bool const is_as_good =
        is_cut ? n_units > (ShareListing::kLeastUnits - kTileUnits) * n_parts && size <= of_equal
               : shares.whole_tiles * n_units <= of_equal + kMerge;
    if (!is_as_good) {
      return false;
    }
    int const begin = place.part * size;
    int const first_unit = place.part > 0 ? begin + kTileUnits : 0;
    int const end_unit =
        is_cut ? min(begin + size, n_blocks) + kTileUnits : place.n_whole * n_units;
    bool const is_any = place.n_whole > 0 && first_unit < end_unit;
    if (lane == 0) {
      device::store(&own.share, Share{.sequence = place.sequence,
                                      .head = place.head,
                                      .first_unit = first_unit,
                                      .n_units = is_any ? end_unit - first_unit : 0});
      device::store(&own.place, CtaShare::Place{begin, size, n_units, 0});
    }
    return true;
  }

  // The number of this CTA's share among the shares of its head.
  CUTE_DEVICE int number() const { return this->params.shares.by_abreast.div(device::block_idx()); }
  // Its head among those abreast.
  CUTE_DEVICE int index_of_head() const {
    int number, index;
    this->params.shares.by_abreast(number, index, device::block_idx());
    return index;
  }

  // The rows and blocks of a sequence's tile. Returns its units: none, where it is another kernel's.
  CUTE_DEVICE int find_tile(Tile& tile, int sequence) const {
    int const n_queries = Base::queries_per_warpgroup(this->params);
    tile.batch = sequence;
    this->find_rows(tile);
    tile.blocks = this->attended(tile, 0, n_queries);
    bool const is_own = 0 < tile.q_rows.length && tile.q_rows.length <= n_queries;
    return is_own ? tile.blocks.size() + ShareListing::kTileUnits : 0;
  }

  // Past the units of a tile, up to `end`, of n_units.
  CUTE_DEVICE void advance(int end, int n_units) {
    left.n_units -= max(end - left.first_unit, 0);
    left.first_unit = end;
    if (end >= n_units) {
      left.first_unit = 0;
      left.head += this->params.shares.by_abreast.divisor;
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
