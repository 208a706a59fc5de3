#include "cute_kernels/host/splits.h"

#include <algorithm>
#include <cmath>

#include "cute_kernels/common/clusters.h"
#include "cute_kernels/params.h"

namespace pyflash {
namespace {

// Each split writes a partial result in fp32, which the merge reads.
double time_of_partials(SplitProblem const& problem, int n) {
  constexpr double kPartialsPerMicrosecond = 375000;
  return static_cast<double>(n * problem.n_outputs) / kPartialsPerMicrosecond;
}

double cost_apart(SplitProblem const& problem, int n) {
  int64_t const waves = ceil_div(problem.n_ctas * n, problem.n_slots);
  double const steps = static_cast<double>(waves * (ceil_div(problem.n_key_blocks, n) + 2));
  return n == 1 ? steps : steps + 3 + 0.35 * n + time_of_partials(problem, n);
}

// How many CTAs the busiest SM runs, in how many rounds, and how long merging takes.
struct Occupancy {
  int64_t on_sm;
  int64_t rounds;
  double merge;
};

Occupancy occupancy(SplitProblem const& problem, int n) {
  int64_t const n_ctas = problem.n_ctas * n;
  int const cluster = cluster_of(n, problem.max_cluster, problem.n_ctas, problem.n_slots);
  if (cluster == 1) {
    int64_t const rounds = ceil_div(n_ctas, problem.n_slots);
    return {.on_sm = n_ctas <= problem.n_sms ? 1 : 2 * rounds,
            .rounds = rounds,
            .merge = n == 1 ? 0 : 5.1 + time_of_partials(problem, n)};
  }
  double const merge = 1.7 + 0.0074 * static_cast<double>(n_ctas);
  for (int const on_sm : {1, 2}) {
    if (on_sm * int64_t(problem.n_sms) <= problem.n_slots &&
        problem.n_ctas <= clusters_that_fit(cluster, on_sm, problem.n_sms)) {
      return {.on_sm = on_sm, .rounds = 1, .merge = merge};
    }
  }
  return {.on_sm = 4, .rounds = 2, .merge = merge};
}

double square(double x) { return x * x; }
double cost_with_clusters(SplitProblem const& problem, int n) {
  auto const [on_sm, rounds, merge] = occupancy(problem, n);
  auto const steps = static_cast<double>(ceil_div(problem.n_key_blocks, n));
  double const busy = static_cast<double>(rounds) * (steps + 1.9) * (on_sm > 1 ? 1.34 : 1);
  double const n_sms = problem.n_sms;
  double const mean_on_sm = std::max(static_cast<double>(problem.n_ctas * n) / n_sms, 1.0);
  double const unequal = std::max(static_cast<double>(on_sm) / mean_on_sm - 1, 0.0);
  // A block of each SM takes memory as long as a CTA 1.76 steps over 64 keys.
  double const n_blocks = static_cast<double>(problem.n_ctas * problem.n_key_blocks) / n_sms;
  double const refilled = n > 1 && rounds > 1 ? 1.02 : 1;
  double const memory = refilled * 1.76 * 64 / problem.B_c * n_blocks * (1 + 0.29 * unequal);
  return std::sqrt(std::sqrt(square(square(busy)) + square(square(memory)))) + merge;
}

}  // namespace

int64_t clusters_that_fit(int cluster, int ctas_per_sm, int n_sms) {
  // As cudaOccupancyMaxActiveClusters reports for an H200.
  constexpr int kSms = 132;
  constexpr int kAlone[] = {132, 66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7};
  constexpr int kPaired[] = {264, 132, 79, 62, 47, 39, 32, 30, 23, 21, 16, 16, 14, 14, 14, 14};
  return int64_t((ctas_per_sm == 1 ? kAlone : kPaired)[cluster - 1]) * n_sms / kSms;
}

Tiling tiling_of(Problem const& problem, TileShape const& shape) {
  auto const& params = problem.params;
  Sequences const q = params.q_sequences();
  int const group = shape.packs_heads ? params.heads / std::max(params.heads_kv, 1) : 1;
  int const n_heads = shape.packs_heads ? params.heads_kv : params.heads;
  int const n_queries = std::max(shape.B_r / std::max(group, 1), 1);
  int64_t const n_row_blocks = q.most_blocks(n_queries);
  int64_t const in_mask = params.mask().most_blocks(std::min(shape.B_r, q.longest), shape.B_c);
  int64_t const all = params.kv().sequences.most_blocks(shape.B_c);
  return {.n_row_blocks = n_row_blocks,
          .n_ctas = n_row_blocks * n_heads * params.batch,
          .n_key_blocks = static_cast<int>(std::min(all, in_mask))};
}

namespace {

// CTAs that share keys equally. Where no SM has more than one tile, one CTA has each SM alone: it reads as fast as two, and a tile is cut
// into half as many parts, each of which the last one waits for.
int count_shares(Tiling const& tiling, int n_sms, int64_t n_slots) {
  return static_cast<int>(tiling.n_ctas <= n_sms ? n_sms : n_slots);
}

}  // namespace

Splits splits_of(Problem const& problem, TileShape const& shape, int ctas_per_sm, int n_sms,
                 int measured) {
  auto const& params = problem.params;
  Tiling const tiling = tiling_of(problem, shape);
  int64_t const n_slots = int64_t(n_sms) * ctas_per_sm;
  if (problem.num_splits == kSplitsByLength) {
    return {.tiling = tiling,
            .number = 1,
            .cluster = 1,
            .n_shares = count_shares(tiling, n_sms, n_slots)};
  }
  if (problem.num_splits == kSplitsAtFixedKeys) {
    return {.tiling = tiling, .number = count_fixed_splits(params, shape, n_slots), .cluster = 1};
  }
  int number = problem.num_splits > 0 ? problem.num_splits : measured;
  if (number == 0) {
    Sequences const q = params.q_sequences();
    int64_t const n_rows = int64_t(q.tensor_rows()) * q.tensor_batches(params.batch) * params.heads;
    number = choose_num_splits({.n_ctas = tiling.n_ctas,
                                .n_row_blocks = tiling.n_row_blocks,
                                .n_slots = n_slots,
                                .n_key_blocks = tiling.n_key_blocks,
                                .n_outputs = n_rows * params.d_head,
                                .least_steps = params.has_fp8_kv() ? 2 : 4,
                                .B_c = shape.B_c,
                                .n_sms = n_sms,
                                .max_cluster = shape.max_cluster});
  }
  return {.tiling = tiling,
          .number = number,
          .cluster = cluster_of(number, shape.max_cluster, tiling.n_ctas, n_slots)};
}

Splits splits_with_variant(Problem const& problem, TileShape const& shape, int ctas_per_sm,
                           int n_sms) {
  TileShape apart = shape;
  apart.max_cluster = 1;
  Splits splits = splits_of(problem, shape, ctas_per_sm, n_sms);
  splits.number = std::min(splits.number, splits_of(problem, apart, ctas_per_sm, n_sms).number);
  int64_t const n_tiles = splits.tiling.n_ctas;
  int const cluster =
      cluster_of(splits.number, shape.max_cluster, n_tiles, int64_t(n_sms) * ctas_per_sm);
  splits.cluster = n_tiles <= clusters_that_fit(cluster, ctas_per_sm, n_sms) ? cluster : 1;
  return splits;
}

int choose_num_splits(SplitProblem const& problem) {
  constexpr int kMaxRounds = 8;
  bool const has_clusters = problem.max_cluster > 1;
  bool const may_be_full = has_clusters && problem.n_row_blocks == 1;
  if (problem.n_ctas == 0 || (!may_be_full && fill(problem.n_ctas, problem.n_slots))) {
    return 1;
  }
  auto most = int64_t(std::min(kMaxSplits, problem.n_key_blocks));
  if (has_clusters) {
    most = std::min(most, kMaxRounds * problem.n_slots / problem.n_ctas);
  }
  auto const cost = has_clusters ? cost_with_clusters : cost_apart;
  int cheapest = 1;
  double least = cost(problem, cheapest);
  for (int n = 2; n <= most; ++n) {
    bool const is_cluster = cluster_of(n, problem.max_cluster, problem.n_ctas, problem.n_slots) > 1;
    // NOTE: from 9 to 15 CTAs of a cluster are placed no better than 16, and were never the fastest.
    bool const is_odd = n > kPortableCluster && n < problem.max_cluster;
    if (is_cluster ? is_odd : problem.n_key_blocks < n * problem.least_steps) {
      continue;
    }
    if (double const of_n = cost(problem, n); of_n < least) {
      least = of_n;
      cheapest = n;
    }
  }
  return cheapest;
}

}  // namespace pyflash
