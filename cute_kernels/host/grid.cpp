#include "cute_kernels/host/grid.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "cute_kernels/common/clusters.h"
#include "cute_kernels/ops.h"

namespace pyflash {
namespace {

constexpr int kElementBytes = 2;      // of Q, K, V and O
constexpr int kPartialBytes = 2 * 4;  // of an element of a split's O, fp32, written and read

// The rows of a sequence. Extents are far below 2^30: kMaxExtent in problem.h.
struct Lengths {
  int q;
  int k;
};

// The keys that n queries attend, from the first of them on.
Interval keys_of(Mask const& mask, int first, int n, Lengths const& lengths) {
  return mask.keys_from(aligned_column(first, lengths.q, lengths.k), lengths.k)
      .of_some(std::min(n, lengths.q - first))
      .from_0();
}

int count_blocks(Mask const& mask, int first, int n, Lengths const& lengths, int B_c) {
  Interval const keys = keys_of(mask, first, n, lengths);
  return keys.size() > 0 ? keys.blocks_touched(B_c).size() : 0;
}

TileWork sum(TileWork const& a, TileWork const& b, double weight_of_b) {
  return {a.tiles + weight_of_b * b.tiles, a.steps + weight_of_b * b.steps,
          a.attended + weight_of_b * b.attended};
}

// The tiles of a head.
class Tiles {
 public:
  // group: query heads of a head of K and V. longest: the rows of the longest sequence of Q.
  Tiles(GridShape const& shape, Mask const& mask, int group, int longest, int num_splits)
      : shape_(shape), mask_(mask), longest_(longest), num_splits_(num_splits) {
    int const n_rows = shape.packs_heads ? std::max(group, 1) : 1;  // of a query
    warpgroup_queries_ = std::max(shape.B_r / shape.n_warpgroups / n_rows, 1);
    n_queries_ = warpgroup_queries_ * shape.n_warpgroups;
    n_blocks_ = ceil_div(longest, n_queries_);
  }

  int count() const { return n_blocks_; }  // of the longest sequence

  // The mean tile of a sequence of these lengths. Tiles beyond its end count, and do nothing.
  TileWork mean(Lengths const& lengths) const {
    // The last tile may hold fewer queries; without a window, the others are the same.
    int const n_whole = std::max(n_blocks_ - 1, 1);
    bool const same = !mask_.cuts_left() && !mask_.cuts_right() && lengths.q == longest_;
    int const n = same ? 1 : std::min(n_whole, kMaxSamples);
    TileWork whole;
    for (int i = 0; i < n; ++i) {
      int64_t const block = (2 * int64_t(i) + 1) * n_whole / (2 * n);
      whole = sum(whole, at(static_cast<int>(block), lengths), 1. / n);
    }
    double const last = 1. / n_blocks_;
    return n_blocks_ == 1 ? whole : sum(sum({}, whole, 1 - last), at(n_blocks_ - 1, lengths), last);
  }

  // Between two windows an inner tile has the most keys.
  TileWork longest(Lengths const& lengths) const {
    TileWork longest;
    for (int const block : {0, n_blocks_ / 2, n_blocks_ - 1}) {
      TileWork const work = at(block, lengths);
      if (work.steps + work.attended >= longest.steps + longest.attended) {
        longest = work;
      }
    }
    return longest;
  }

 private:
  static constexpr int kMaxSamples = 15;

  TileWork at(int block, Lengths const& lengths) const {
    int const first = block * n_queries_;
    if (first >= lengths.q) {
      return {};
    }
    int const n_steps = count_blocks(mask_, first, n_queries_, lengths, shape_.B_c);
    int n_attended = n_steps;
    if (shape_.n_warpgroups > 1) {
      n_attended = 0;
      for (int i = 0; i < shape_.n_warpgroups; ++i) {
        int const begin = first + i * warpgroup_queries_;
        if (begin < lengths.q) {
          n_attended += count_blocks(mask_, begin, warpgroup_queries_, lengths, shape_.B_c);
        }
      }
    }
    // The first splits have the blocks that are over.
    int const steps = (n_steps + num_splits_ - 1) / num_splits_;
    double const share = n_steps == 0 ? 0 : double(n_attended) / n_steps / shape_.n_warpgroups;
    return {1, double(steps), share * steps};
  }

  GridShape const& shape_;
  Mask mask_;
  int longest_;
  int num_splits_;
  int warpgroup_queries_;
  int n_queries_;
  int n_blocks_;
};

// The mean of sequences whose lengths spread evenly about the mean, up to the largest.
TileWork mean_of_packed(Tiles const& tiles, double mean_q, double mean_k, Lengths const& largest) {
  TileWork mean;
  for (double const place : {-2 / 3., 0., 2 / 3.}) {  // of each third, on from -1 to 1
    auto const length = [=](double mean, int largest) {
      return static_cast<int>(std::lround(std::max(mean + (largest - mean) * place, 1.)));
    };
    mean = sum(mean, tiles.mean({length(mean_q, largest.q), length(mean_k, largest.k)}), 1 / 3.);
  }
  return mean;
}

}  // namespace

GridShape grid_shape(ConfigOf<Forward> const& config, int ctas_per_sm) {
  return {std::visit([](auto const& c) { return tile_shape(c); }, config), ctas_per_sm};
}

Grid make_grid(GridShape const& shape, Problem const& problem, int n_sms, int num_splits) {
  auto const& params = problem.params;
  Sequences const q = params.q_sequences(), k = params.kv().sequences;
  int const group = params.heads / std::max(params.heads_kv, 1);
  Tiles const tiles(shape, params.mask(), group, q.longest, num_splits);
  int64_t const n_heads = shape.packs_heads ? params.heads_kv : params.heads;
  int64_t const n_tiles = tiles.count() * n_heads * params.batch;  // of one pass
  if (n_tiles == 0) {
    return {};
  }
  int64_t const n_slots = int64_t(n_sms) * shape.ctas_per_sm;
  int const cluster = cluster_of(num_splits, shape.max_cluster, n_tiles, n_slots);
  double const batch = params.batch;
  double const mean_q = q.mean_length(params.batch), mean_k = k.mean_length(params.batch);
  Lengths const largest{q.longest, k.longest};
  Lengths const mean{static_cast<int>(std::ceil(mean_q)), static_cast<int>(std::ceil(mean_k))};
  double const n_rows = mean_q * batch * params.heads;
  double const n_keys =
      double(keys_of(params.mask(), 0, mean.q, mean).size()) * batch * params.heads_kv;
  double const n_partials = num_splits > cluster ? n_rows * num_splits : 0;
  double const megacolumns = params.d_head * 1e-6;
  return {
      .n_tiles = n_tiles * (num_splits / cluster),
      .n_slots = std::max<int64_t>(n_slots / cluster, 1),
      .cluster = cluster,
      .mean = q.is_packed() ? mean_of_packed(tiles, mean_q, mean_k, largest) : tiles.mean(largest),
      .longest = tiles.longest(largest),
      .megabytes = 2 * kElementBytes * (n_rows + n_keys) * megacolumns,
      .partial_megabytes = kPartialBytes * n_partials * megacolumns};
}

}  // namespace pyflash
