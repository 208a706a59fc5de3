// The sums of dK and dV in global memory, in fp32, where several CTAs divide the query heads of a head of K and V.
//
// A piece of 64 keys has tiles of 16 keys by 8 columns, down the keys first. A tile lies as in the sums of dQ (sums.h).
#pragma once

#include <cute/tensor_impl.hpp>

#include "cute_kernels/device.h"
#include "cute_kernels/sm80/backward/problem.h"
#include "cute_kernels/sm80/backward/sums.h"

namespace pyflash::sm80::backward {

using namespace cute;

inline constexpr int kValuesOfColumn = kQueriesOfPiece / kTileRows * kValuesOfTile;  // of tiles

// The rows of the sums of dK come first.
CUTE_DEVICE int rows_before(BackwardParams const& problem, bool of_dV) {
  return of_dV ? problem.n_key_rows() : 0;
}

// The first value of the tile that has a row and a column.
CUTE_DEVICE int64_t key_tile_at(int row, int column, int columns) {
  return int64_t(row / kQueriesOfPiece) * (kQueriesOfPiece * columns) +
         column / kTileColumns * kValuesOfColumn +
         row % kQueriesOfPiece / kTileRows * kValuesOfTile;
}

template <class Traits, BackwardFeatures kFeatures>
struct KeySums {
  BackwardParams const& problem;
  // Of the tile's first key, in the sums of dK. NOTE: in local memory, as volatile: in a register it would be one too many while the
  // tile's blocks are computed.
  int volatile first_row;

  CUTE_DEVICE KeySums(BackwardParams const& problem, Tile<kFeatures> const& tile)
      : problem(problem) {
    if constexpr (!kFeatures.deterministic) {
      int first = tile.first_key;
      if constexpr (kFeatures.packed) {
        first += problem.blocked_key_sums().begin_of(tile.sequence(), device::Loader{});
      }
      first_row = problem.key_row(tile.batch, tile.head_kv, first);
    }
  }

  // Adds what this thread's warp has of dK or dV.
  template <class Acc>
  CUTE_DEVICE void add(Acc const& acc, bool of_dV) const {
    int const thread = device::fresh_thread_idx();
    int const warp = thread / kLanes;
    int const row = rows_before(problem, of_dV) + first_row + Traits::first_key(warp);
    float* const to =
        problem.dkv_sum +
        key_tile_at(row, Traits::first_column_dKV(warp / Traits::kKeyWarps), Traits::kHeadDim) +
        thread % kLanes;
    device::at(device::Site::dKV_r2g);
    CUTE_UNROLL
    for (int n = 0; n < size<2>(acc); ++n) {
      CUTE_UNROLL
      for (int m = 0; m < size<1>(acc); ++m) {
        CUTE_UNROLL
        for (int i = 0; i < size<0>(acc); ++i) {
          device::reduce_add(to + Traits::column_dKV(n) / kTileColumns * kValuesOfColumn +
                                 m * kValuesOfTile + i * kLanes,
                             acc(i, m, n));
        }
      }
    }
  }
};

// A piece of the rows of the sums of dK or of dV.
struct KeyPiece {
  static constexpr BackwardFeatures kAny = {.packed = true};

  Tile<kAny> tile;
  bool of_dV;
  int row;  // of the first key, in the workspace

  // index: below n_key_pieces.
  CUTE_DEVICE static KeyPiece of(BackwardParams const& problem, int index) {
    int const n_pieces = problem.padded_k / kQueriesOfPiece;  // of a head
    int const n_heads = problem.heads_of_slice;
    int const of_both = index / n_pieces;
    KeyPiece piece{.tile = {.problem = problem},
                   .of_dV = of_both >= n_heads,
                   .row = problem.first_key_row() + index * kQueriesOfPiece};
    int const head = problem.first_head_of_slice + of_both % n_heads;
    piece.tile.head_kv = head % problem.heads_kv;
    piece.tile.batch = head / problem.heads_kv;
    piece.tile.find_sequence(index % n_pieces * kQueriesOfPiece, problem.blocked_key_sums().block);
    return piece;
  }
};

}  // namespace pyflash::sm80::backward
