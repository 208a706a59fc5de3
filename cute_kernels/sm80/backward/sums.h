// The sums of dQ in global memory, in fp32, as the family's kernels add to them and as they are read afterwards.
//
// A part is 32 queries by 32 columns, which a warp adds at a time. It has tiles of 16 x 8, down the queries first, of each the four values
// of every lane of an accumulator: all lanes' first value, then all lanes' second one. So a warp adds to 32 neighbours at a time.
#pragma once

#include <cute/tensor_impl.hpp>

#include "cute_kernels/device.h"
#include "cute_kernels/sm80/backward/problem.h"

namespace pyflash::sm80::backward {

using namespace cute;

inline constexpr int kLanes = 32;
inline constexpr int kRowsOfPart = 32;
inline constexpr int kColumnsOfPart = 32;
inline constexpr int kTileRows = 16;
inline constexpr int kTileColumns = 8;
inline constexpr int kValuesOfTile = 4 * kLanes;
static_assert(kRowsOfPart * kColumnsOfPart == kSumsOfTurn);

// The part that has a row of the workspace and a column.
// columns: of the config.
CUTE_DEVICE int64_t part_of(int row, int column, int columns) {
  constexpr int kRowParts = kQueriesOfPiece / kRowsOfPart;
  return int64_t(row / kQueriesOfPiece) * (columns / kColumnsOfPart * kRowParts) +
         column / kColumnsOfPart * kRowParts + row % kQueriesOfPiece / kRowsOfPart;
}

// The first value of the tile that has a row and a column.
CUTE_DEVICE int64_t tile_at(int row, int column, int columns) {
  constexpr int kTilesOfColumn = kRowsOfPart / kTileRows;
  int const in_part =
      column % kColumnsOfPart / kTileColumns * kTilesOfColumn + row % kRowsOfPart / kTileRows;
  return part_of(row, column, columns) * kSumsOfTurn + in_part * kValuesOfTile;
}

template <class Traits, BackwardFeatures kFeatures>
struct Sums {
  Tile<kFeatures> const& tile;

  // Adds the rows of a part from `row` of the workspace on, and the columns of one part or more.
  template <class Acc>
  CUTE_DEVICE void add(Acc const& acc, int row, int column) const {
    constexpr int kOfPart = kSumsOfTurn / kLanes;
    device::at(device::Site::dQ_s2g);
    CUTE_UNROLL
    for (int i = 0; i < size(acc) / kOfPart; ++i) {
      add_part(part_of(row, column + i * kColumnsOfPart, Traits::kHeadDim),
               [&](int value) { return acc(i * kOfPart + value); });
    }
  }

 private:
  template <class Values>
  CUTE_DEVICE void add_part(int64_t part, Values const& values) const {
    int const lane = device::thread_idx() % kLanes;
    float* const first = tile.problem.dq_sum + part * kSumsOfTurn + lane;
    bool const in_turn = take_turn(part, lane);
    CUTE_UNROLL
    for (int i = 0; i < kSumsOfTurn / kLanes; ++i) {
      device::reduce_add(first + i * kLanes, values(i));
    }
    if constexpr (kFeatures.deterministic) {
      device::sync_warp();  // all lanes have added
      if (in_turn) {
        device::store_release(tile.problem.turns + part, turn() - 1);
      }
    }
  }

  // Waits until what blocks of keys before this one add to a part has been added. Whether this lane gives the turn on.
  CUTE_DEVICE bool take_turn(int64_t part, int lane) const {
    bool in_turn = false;
    if constexpr (kFeatures.deterministic) {
      if (lane == 0) {
        in_turn = device::wait_until_at_most(tile.problem.turns + part, turn()) == turn();
      }
      device::sync_warp();
    }
    return in_turn;
  }

  // That of the block of keys.
  CUTE_DEVICE float turn() const {
    return float(tile.problem.turn_of(tile.first_key / Traits::kBlockN));
  }
};

}  // namespace pyflash::sm80::backward
