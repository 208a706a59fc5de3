// Into how many parts the keys of a problem are split, so that a grid of few CTAs fills the GPU: the number with the least
// cost by a model whose unit is one CTA's step over a block of keys, about a microsecond; of equal costs the fewest.
//
// Where no clusters merge them:
//   cost(n) = waves(n) * (steps(n) + 2) + merge(n),  waves(n) = ceil(CTAs * n / slots),  steps(n) = ceil(blocks / n)
//   merge(1) = 0,  merge(n) = 3 + 0.35 n + n * elements of O / 375000: a launch, a row's splits in turn, fp32 out and in
// where the slots are the CTAs that run at a time; n leaves every split that is merged apart 4 blocks or more, and 2 with an
// FP8 cache, whose kernels let the merge start before they end. A grid that fills four slots of five without is not split.
//
// Where clusters may, of which two CTAs share an SM, also grids of a few rounds are split if a sequence is a tile:
//   cost(n) = (busy(n)^4 + memory(n)^4)^(1/4) + merge(n)
//   busy(n)    rounds * (steps(n) + 1.9), 1.34 times that where CTAs share SMs
//   memory(n)  all steps at the rate of the GPU's memory, more where some SMs have more CTAs than others have: SMs get equal
//              shares of it; 2 % more for splits of several rounds
//   merge(n)   1.7 and 0.0074 for each CTA in clusters, else 5.1 and the partial results
// The SMs of a cluster are neighbours, so that fewer clusters fit than there are SMs. The fit and its figures:
// docs/experiments/2026-11-selection.md.
#pragma once

#include "cute_kernels/forward.h"
#include "cute_kernels/host/problem.h"

namespace pyflash {

// How a problem is cut by a config, in one pass.
struct Tiling {
  int64_t n_row_blocks;  // of the longest sequence: Q blocks of a head, or of a group of them
  int64_t n_ctas;        // one for each row block, head, or group of them, and batch
  int n_key_blocks;      // that a Q block attends, at most
};

Tiling tiling_of(Problem const& problem, TileShape const& shape);

struct Splits {
  Tiling tiling;
  int number;
  int cluster;       // of the CTAs that share a tile, a split each: `number`, or 1
  int n_shares = 0;  // of the keys of all sequences, one for each CTA; 0: there are none
};

// For a config of which so many CTAs run on an SM at a time: the number that the problem asks for, else the measured one if it
// is not 0, else the one of least cost.
Splits splits_of(Problem const& problem, TileShape const& shape, int ctas_per_sm, int n_sms,
                 int measured = 0);

// The same for a kernel with a variant. The number is the lower of the one with clusters and the one without: a mask may leave few
// blocks to split. Clusters merge the splits if the clusters of all tiles run at a time, also where the problem asks for the number.
Splits splits_with_variant(Problem const& problem, TileShape const& shape, int ctas_per_sm,
                           int n_sms);

// Whether so many tiles are work enough for so many CTAs: four slots of five.
constexpr bool fill(int64_t n_tiles, int64_t n_slots) { return 5 * n_tiles >= 4 * n_slots; }

// Splits at fixed keys of tiles of this shape that CTAs share: of the longest sequence, as far as the host knows. 1 where each tile is
// one CTA's, which folds its splits.
inline int count_fixed_splits(Forward::Params const& params, TileShape const& shape,
                              int64_t n_slots) {
  int64_t const n_heads = shape.packs_heads ? params.heads_kv : params.heads;
  int64_t const n_tiles =
      params.q_sequences().most_blocks(shape.n_queries(params)) * n_heads * params.batch;
  if (shape.folds_splits && fill(n_tiles, n_slots)) {
    return 1;
  }
  // NOTE: who merges splits adds the sinks, so that with sinks there is always something to merge; else one alone is the result.
  int const least = params.sinks.data != nullptr ? 2 : 1;
  int64_t const all = params.kv().sequences.most_blocks(shape.B_c);
  int64_t const n = ceil_div(all, int64_t(blocks_of_fixed_split(shape.B_c)));
  return n < least ? least : n > kMaxSplits ? kMaxSplits : static_cast<int>(n);
}

struct SplitProblem {
  int64_t n_ctas;        // of one pass
  int64_t n_row_blocks;  // tiles of a sequence
  int64_t n_slots;
  int n_key_blocks;
  int64_t n_outputs;    // elements of O
  int least_steps = 4;  // of a split that is merged apart
  int B_c = 1;
  int n_sms = 0;
  int max_cluster = 1;  // the most splits of a tile that may be a cluster of CTAs
};

int choose_num_splits(SplitProblem const& problem);

// Clusters of so many CTAs that run at a time, with so many of these to an SM, one or two.
int64_t clusters_that_fit(int cluster, int ctas_per_sm, int n_sms);

}  // namespace pyflash
