// Which scores of a Q tile count, by the rows and columns of a thread (common/mask.h).
#pragma once

#include <cmath>

#include "cute_kernels/sm90/columns.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/forward/problem.h"
#include "cute_kernels/sm90/gemm.h"

namespace pyflash::sm90 {

using namespace cute;

// Masks one warpgroup's rows; a thread holds two.
template <class Traits, ForwardFeatures kFeatures>
struct ScoreMask {
  static constexpr int kBlockN = Traits::kBlockN;

  int uncut_begin;  // keys that all rows attend: [uncut_begin, uncut_end)
  int uncut_end;
  int row_begin[2];  // keys that a row attends, counted from the thread's first column
  int row_end[2];

  ScoreMask() = default;

  // first_query: the warpgroup's. coords: (row, column) in the block, partitioned like acc_S.
  template <class CoordTensor>
  CUTE_DEVICE ScoreMask(KernelParams const& params, Tile const& tile, int first_query,
                        CoordTensor const& coords) {
    int const aligned = first_query + tile.diagonal();  // with row 0
    Interval const uncut =
        keys_from<kFeatures>(params, tile, aligned)
            .of_all(TileSchedule<Traits, kFeatures>::queries_per_warpgroup(params));
    uncut_begin = uncut.begin;
    uncut_end = uncut.end;
    Tensor by_rows = rows_by_columns(coords);  // ((2,MMA_M),(2,V,MMA_N))
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      int const query = unpack_row<Traits>(params, get<0>(by_rows(r, 0))).query;
      int const column = get<1>(by_rows(r, 0));
      auto const keys = keys_from<kFeatures>(params, tile, aligned + query);
      row_begin[r] = kFeatures.left_window ? keys.begin(0) - column : 0;
      row_end[r] = keys.end(0) - column;
    }
  }

  CUTE_DEVICE bool cuts(int n_block) const {
    return (n_block + 1) * kBlockN > uncut_end ||
           (kFeatures.left_window && n_block * kBlockN < uncut_begin);
  }

  // What `cuts` says from here on, of blocks before this one: block n_block is cut, too, or all are.
  CUTE_DEVICE void also_cut(int n_block) {
    uncut_end = min(uncut_end, (n_block + 1) * kBlockN - 1);
  }
  CUTE_DEVICE void cut_all() { uncut_end = 0; }

  // Sets the scores that do not count to -inf.
  template <class AccS>
  CUTE_DEVICE void apply(AccS& acc_S, int n_block) const {
    static_assert(are_columns_as_counted());
    Tensor S = rows_by_columns(acc_S);  // ((2,MMA_M),(2,V,MMA_N))
    int const first_key = n_block * kBlockN;
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      set_outside(S, r, row_begin[r] - first_key, row_end[r] - first_key, -INFINITY);
    }
  }

 private:
  static constexpr bool are_columns_as_counted() {
    AccCoords<kBlockN> const coords{};
    bool same = true;
    for (int c = 0; c < kBlockN / 4; ++c) {
      same = same && get<1>(coords(make_coord(make_coord(c % 2, 0, c / 2), 0, 0))) == column_of(c);
    }
    return same;
  }
};

}  // namespace pyflash::sm90
