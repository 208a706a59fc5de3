// The sums of dQ in global memory, in fp32, as the family's kernels add to them and as they are read afterwards.
//
// A part is 16 queries by 64 columns, which a warp adds at a time. It has tiles of 16 x 8, of each the four values of every lane
// of an accumulator: all lanes' first value, then all lanes' second one. So a warp adds to 32 neighbours at a time.
#pragma once

#include <cute/tensor_impl.hpp>

#include "cute_kernels/device.h"
#include "cute_kernels/sm80/backward/problem.h"

namespace pyflash::sm80::backward {

using namespace cute;

inline constexpr int kLanes = 32;
inline constexpr int kRowsOfPart = 16;
inline constexpr int kColumnsOfPart = 64;
static_assert(kRowsOfPart * kColumnsOfPart == kSumsOfTurn);

// The part of a row of the workspace, of 16 that are its first rows, and of a column.
// columns: of the config.
CUTE_DEVICE int64_t part_of(int row, int column, int columns) {
  constexpr int kRowParts = kQueriesOfPiece / kRowsOfPart;
  return int64_t(row / kQueriesOfPiece) * (columns / kColumnsOfPart * kRowParts) +
         column / kColumnsOfPart * kRowParts + row % kQueriesOfPiece / kRowsOfPart;
}

template <class Traits, BackwardFeatures kFeatures>
struct Sums {
  Tile<kFeatures> const& tile;

  // Adds 16 rows from `row` of the workspace on, and 64 columns.
  template <class Acc>
  CUTE_DEVICE void add(Acc const& acc, int row, int column) const {
    device::at(device::Site::dQ_s2g);
    int64_t const part = part_of(row, column, Traits::kHeadDim);
    int const lane = device::thread_idx() % kLanes;
    float* const first = tile.problem.dq_sum + part * kSumsOfTurn + lane;
    bool const in_turn = take_turn(part, lane);
    CUTE_UNROLL
    for (int i = 0; i < size(acc); ++i) {
      device::reduce_add(first + i * kLanes, acc(i));
    }
    if constexpr (kFeatures.deterministic) {
      device::sync_warp();  // all lanes have added
      if (in_turn) {
        device::store_release(tile.problem.turns + part, turn() - 1);
      }
    }
  }

 private:
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
