#include "cute_kernels/host/expected_time.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <variant>

#include "cute_kernels/sm90/shape.h"

namespace pyflash {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What tiles take of a CTA: how many they are, their blocks of keys, and these weighed by the warpgroups that attend them.
struct Load {
  double tiles = 0;
  double steps = 0;
  double attended = 0;

  Load operator+(Load const& other) const {
    return {tiles + other.tiles, steps + other.steps, attended + other.attended};
  }
  Load operator*(double factor) const {
    return {tiles * factor, steps * factor, attended * factor};
  }
  // In about half steps: to compare loads, whatever a kernel's costs are.
  double weight() const { return 4 * tiles + steps + attended; }
};

Load heavier(Load const& a, Load const& b) { return a.weight() < b.weight() ? b : a; }

struct Lengths {
  int64_t q;
  int64_t k;
};

constexpr int kMaxSamples = 7;     // of a sequence's tiles
constexpr int64_t kMaxRounds = 6;  // that are followed one by one; more are taken for balanced
// Of a section of heads: up to the one K and V stay in L2, from the other on they are read for each tile.
constexpr double kKeptBytes = 18e6, kLostBytes = 50e6;

class Grid {
 public:
  Grid(GridShape const& shape, ForwardParams const& params, int n_sms, int num_splits)
      : shape_(shape), params_(params), n_sms_(n_sms), num_splits_(num_splits) {
    cluster_ = num_splits <= shape.max_cluster ? num_splits : 1;
    n_heads_ = shape.packs_heads ? params.heads_kv : params.heads;
    int const group = params.heads / std::max(n_heads_, 1);
    warpgroup_queries_ = std::max(shape.B_r / shape.n_warpgroups / std::max(group, 1), 1);
    n_queries_ = warpgroup_queries_ * shape.n_warpgroups;
    is_sorted_ = params.window_right < kNoWindow;
    has_window_ = is_sorted_ || params.window_left < kNoWindow;
    double const batch = std::max(params.batch, 1);
    bool const packed = params.total_q > 0;
    mean_q_ = packed ? params.total_q / batch : params.seqlen_q;
    mean_k_ = packed ? params.total_k / batch : params.seqlen_k;
    is_ragged_ = mean_q_ < 0.999 * params.seqlen_q;
    n_blocks_ = ceil_div(params.seqlen_q, n_queries_);
    n_rest_ = int64_t(n_heads_) * params.batch * (num_splits / cluster_);
    n_tiles_ = n_blocks_ * n_rest_;
    n_slots_ = std::max<int64_t>(int64_t(n_sms) * shape.ctas_per_sm / cluster_, 1);
    n_rounds_ = ceil_div(n_tiles_, n_slots_);
  }

  bool is_empty() const { return n_tiles_ == 0; }

  double time(Costs const& costs) {
    set_samples();
    section_ = heads_of_section();
    Load const longest = longest_tile();
    Load const busiest = heavier(of_busiest_slot(longest), longest);
    double const step = costs.step * (params_.softcap.cap != 0 ? costs.capped : 1);
    double const tile = costs.tile + (is_sorted_ ? costs.mask * step : 0);
    double const steps = (1 - costs.rows) * busiest.steps + costs.rows * busiest.attended;
    double const alone = busiest.tiles * tile + step * steps / num_splits_;
    double const in_memory = bytes_of_memory() / costs.memory * 1e-6;
    double const in_l2 = (bytes_of_tiles() + bytes_of_rows()) / costs.l2 * 1e-6;
    double const busy = on_shared_sm(alone, costs.share) + costs.cold * in_memory;
    auto const fourth = [](double x) { return x * x * x * x; };
    double const all = std::sqrt(std::sqrt(fourth(busy) + fourth(in_memory) + fourth(in_l2)));
    return costs.launch + all + merge(costs);
  }

 private:
  // Blocks of keys that these queries attend.
  int64_t count_blocks(int64_t first, int64_t n, Lengths const& lengths) const {
    int64_t const offset = lengths.k - lengths.q;
    int64_t const last = std::min(first + n, lengths.q) - 1;
    int64_t begin = 0, end = lengths.k;
    if (params_.window_left < kNoWindow) {
      begin = std::clamp<int64_t>(first + offset - params_.window_left, 0, lengths.k);
    }
    if (params_.window_right < kNoWindow) {
      end = std::clamp<int64_t>(last + offset + params_.window_right + 1, 0, lengths.k);
    }
    return std::max<int64_t>(0, ceil_div(end, shape_.B_c) - begin / shape_.B_c);
  }

  Load tile(int64_t block, Lengths const& lengths) const {
    int64_t const first = block * n_queries_;
    if (first >= lengths.q) {
      return {};
    }
    auto const steps = static_cast<double>(count_blocks(first, n_queries_, lengths));
    if (shape_.n_warpgroups == 1) {
      return {1, steps, steps};
    }
    int64_t attended = 0;
    for (int i = 0; i < shape_.n_warpgroups; ++i) {
      int64_t const begin = first + i * warpgroup_queries_;
      attended += begin < lengths.q ? count_blocks(begin, warpgroup_queries_, lengths) : 0;
    }
    return {1, steps, static_cast<double>(attended) / shape_.n_warpgroups};
  }

  // The mean of sequences of the lengths that there are.
  Load mean_tile(int64_t block) const {
    if (!is_ragged_) {
      return tile(block, {params_.seqlen_q, params_.seqlen_k});
    }
    Load sum;
    for (double const quantile : {1 / 6., 3 / 6., 5 / 6.}) {
      auto const length = [=](double mean, int64_t most) {
        auto const largest = static_cast<double>(most);
        double const length = largest - 2 * (largest - mean) * (1 - quantile);
        return static_cast<int64_t>(std::max(1.0, std::round(length)));
      };
      sum =
          sum + tile(block, {length(mean_q_, params_.seqlen_q), length(mean_k_, params_.seqlen_k)});
    }
    return sum * (1 / 3.);
  }

  // Some of a sequence's tiles, the last one, which may hold fewer queries, and the mean.
  void set_samples() {
    n_whole_ = is_ragged_ ? n_blocks_ : std::max<int64_t>(n_blocks_ - 1, 1);
    bool const same = !has_window_ && !is_ragged_;
    n_samples_ = same ? 1 : static_cast<int>(std::min<int64_t>(n_whole_, kMaxSamples));
    Load sum;
    for (int i = 0; i < n_samples_; ++i) {
      samples_[i] = mean_tile(i * (n_whole_ - 1) / std::max(n_samples_ - 1, 1));
      sum = sum + samples_[i];
    }
    last_ = mean_tile(n_blocks_ - 1);
    if (n_samples_ > 1 && n_samples_ < n_whole_) {
      sum = (sum + (samples_[0] + samples_[n_samples_ - 1]) * -0.5) *
            (static_cast<double>(n_samples_) / (n_samples_ - 1));
    }
    auto const n_whole = static_cast<double>(n_whole_), n_blocks = static_cast<double>(n_blocks_);
    mean_ = (sum * (n_whole / n_samples_) + last_ * (n_blocks - n_whole)) * (1 / n_blocks);
  }

  Load at(int64_t block) const {
    if (block >= n_whole_) {
      return last_;
    }
    if (n_samples_ == n_whole_) {
      return samples_[block];
    }
    double const place = static_cast<double>(block) * (n_samples_ - 1) /
                         static_cast<double>(std::max<int64_t>(n_whole_ - 1, 1));
    int const below = static_cast<int>(place), above = std::min(below + 1, n_samples_ - 1);
    return samples_[below] * (below + 1 - place) + samples_[above] * (place - below);
  }

  Load longest_tile() const {
    Load longest;
    if (is_ragged_) {
      for (int64_t const block : {int64_t(0), (n_blocks_ - 1) / 2, n_blocks_ - 2, n_blocks_ - 1}) {
        longest = heavier(longest,
                          tile(std::max<int64_t>(block, 0), {params_.seqlen_q, params_.seqlen_k}));
      }
    } else {
      longest =
          *std::max_element(samples_, samples_ + n_samples_,
                            [](Load const& a, Load const& b) { return a.weight() < b.weight(); });
      longest = heavier(longest, last_);
    }
    if (num_splits_ > 1 && longest.steps > 0) {  // the first splits have the blocks that are over
      auto const steps = static_cast<int64_t>(std::ceil(longest.steps));
      double const more =
          static_cast<double>(ceil_div(steps, num_splits_) * num_splits_) / longest.steps;
      longest.steps *= more;
      longest.attended *= more;
    }
    return longest;
  }

  // As set_order in sm90/plan.h.
  int64_t heads_of_section() const {
    if (!is_sorted_) {
      return std::clamp<int64_t>(ceil_div(n_slots_, n_blocks_), 1, n_rest_);
    }
    constexpr int64_t kL2Bytes = 36 << 20;
    int64_t const bytes_of_head = std::max<int64_t>(params_.seqlen_k, 1) * 4 * shape_.d_head;
    int64_t section =
        std::max<int64_t>(kL2Bytes / bytes_of_head * (n_heads_ / params_.heads_kv), 1);
    if (shape_.persistent) {
      int64_t const unit = 2 * n_slots_ / std::gcd(2 * n_slots_, n_blocks_);
      section = 2 * section >= unit ? unit : n_rest_;
    }
    return std::min(section, n_rest_);
  }

  Load of_busiest_slot(Load const& longest) const {
    auto const n_slots = static_cast<double>(n_slots_), rounds = static_cast<double>(n_rounds_);
    if (n_rounds_ == 1) {
      return longest;
    }
    Load const even = mean_ * (static_cast<double>(n_tiles_) / n_slots);
    if (is_ragged_ && !shape_.persistent) {
      return even + longest * (has_window_ ? 0.15 : 0.3);
    }
    Load const planned = is_sorted_ ? of_busiest_sorted() : of_busiest_unsorted(even);
    if (!is_ragged_) {
      return planned;
    }
    // Sums of tiles of random lengths.
    double const spread = 1.4 * (1 - mean_q_ / params_.seqlen_q) * std::sqrt(rounds);
    Load const busiest = planned + longest * spread, most = longest * rounds;
    return {std::min(busiest.tiles, most.tiles), std::min(busiest.steps, most.steps),
            std::min(busiest.attended, most.attended)};
  }

  Load of_busiest_unsorted(Load const& even) const {
    auto const rounds = static_cast<double>(n_rounds_);
    if (shape_.persistent && n_slots_ % n_blocks_ == 0) {  // the same two tiles in turn
      Load busiest;
      for (int64_t i = 0; i < std::min<int64_t>((n_blocks_ + 1) / 2, kMaxSamples); ++i) {
        busiest = heavier(busiest, at(i) + at(n_blocks_ - 1 - i));
      }
      return busiest * (rounds / 2);
    }
    if (is_ragged_ || has_window_) {
      return even;
    }
    if (!shape_.persistent) {
      return mean_ * rounds;
    }
    auto const n_last = static_cast<double>(n_rounds_ / n_blocks_);
    return samples_[0] * (rounds - n_last) + last_ * n_last;
  }

  // In each section tiles go from the longest to the shortest, in every other round backwards.
  Load of_busiest_sorted() const {
    int64_t const section = section_ * n_blocks_;
    int64_t const n_full = (n_tiles_ - 1) / section, rest = n_tiles_ - n_full * section;
    int64_t const in_last_round = (rest - 1) % n_slots_ + 1;
    bool const last_is_forward = (ceil_div(rest, n_slots_) - 1) % 2 == 0;
    int64_t const edge = last_is_forward ? in_last_round - 1 : n_slots_ - in_last_round;
    Load busiest;
    for (int64_t const slot :
         {int64_t(0), n_slots_ / 4, n_slots_ / 2, 3 * n_slots_ / 4, n_slots_ - 1, edge,
          std::clamp<int64_t>(last_is_forward ? edge + 1 : edge - 1, 0, n_slots_ - 1)}) {
      Load load = of_section(slot, rest);
      if (n_full > 0) {
        load =
            load + of_section(shape_.persistent ? slot : -1, section) * static_cast<double>(n_full);
      }
      busiest = heavier(busiest, load);
    }
    return busiest;
  }

  // slot: -1, an even share.
  Load of_section(int64_t slot, int64_t n_tiles) const {
    int64_t const rounds = ceil_div(n_tiles, n_slots_);
    if (slot < 0 || rounds > kMaxRounds) {
      return mean_ * (static_cast<double>(n_tiles) / static_cast<double>(n_slots_));
    }
    int64_t const n_heads = std::max<int64_t>(n_tiles / n_blocks_, 1);
    bool const first_is_longest =
        !is_ragged_ && samples_[0].weight() > samples_[n_samples_ - 1].weight();
    Load load;
    for (int64_t round = 0; round < rounds; ++round) {
      int64_t const index = round * n_slots_ + (round % 2 == 0 ? slot : n_slots_ - 1 - slot);
      if (index < n_tiles) {
        int64_t const from_longest = index / n_heads;
        load = load + at(first_is_longest ? from_longest : n_blocks_ - 1 - from_longest);
      }
    }
    return load;
  }

  // The last round has fewer CTAs on an SM.
  double on_shared_sm(double alone, double share) const {
    auto const slots = static_cast<double>(n_slots_);
    double const n_tiles = static_cast<double>(n_tiles_) * mean_.tiles;
    auto const slower = [&](double n_slots_taken) {
      double const on_sm = std::ceil(n_slots_taken * cluster_ / n_sms_ - 1e-9);
      return std::max(1.0, std::clamp<double>(on_sm, 1, shape_.ctas_per_sm) * share);
    };
    if (n_tiles_ <= n_slots_) {
      // NOTE: clusters of CTAs do not fit on all SMs; some share one.
      bool const is_tight = cluster_ > 1 && 16 * n_tiles_ * cluster_ > 15 * n_sms_;
      return alone * std::max(slower(n_tiles), is_tight ? 1.5 * share : 0);
    }
    double const rest = std::fmod(n_tiles, slots);
    double const last = slower(rest == 0 ? slots : rest), full = slower(slots);
    return alone * (full - (full - last) / std::ceil(static_cast<double>(n_tiles_) / slots));
  }

  double bytes_of_rows() const {
    double const n_rows = mean_q_ * params_.batch * params_.heads;
    return 4 * n_rows * params_.d_head;
  }

  // That all tiles load of K and V.
  double bytes_of_tiles() const {
    double const n_tiles = static_cast<double>(n_tiles_) / (num_splits_ / cluster_);
    return n_tiles * mean_.steps * shape_.B_c * 4 * params_.d_head;
  }

  double bytes_of_memory() const {
    double const cut_left =
        params_.window_left < kNoWindow ? mean_k_ - mean_q_ - params_.window_left : 0;
    double const cut_right = is_sorted_ ? std::max(-params_.window_right, 0) : 0;
    double const n_keys = std::max(mean_k_ - std::max(cut_left, 0.0) - cut_right, 0.0);
    double const per_key = 4.0 * params_.heads_kv * params_.d_head;
    double const once = n_keys * params_.batch * per_key;
    if (!is_sorted_) {
      return once + bytes_of_rows();
    }
    double const of_tile = params_.window_left < kNoWindow
                               ? std::min<double>(mean_k_, double(params_.window_left) + n_queries_)
                               : mean_k_;
    double const of_section = static_cast<double>(section_) / n_heads_ * of_tile * per_key;
    double const lost = std::clamp((of_section - kKeptBytes) / (kLostBytes - kKeptBytes), 0.0, 1.0);
    return once + lost * std::max(bytes_of_tiles() - once, 0.0) + bytes_of_rows();
  }

  double merge(Costs const& costs) const {
    if (num_splits_ == 1) {
      return 0;
    }
    double const n_outputs = bytes_of_rows() / 4;
    return costs.merge + num_splits_ * (cluster_ > 1 ? 0.03 : 0.06 + n_outputs / 375000);
  }

  GridShape const& shape_;
  ForwardParams const& params_;
  int n_sms_;
  int num_splits_;
  int cluster_;
  int n_heads_;  // that have tiles of their own
  int warpgroup_queries_;
  int n_queries_;   // of a tile
  bool is_sorted_;  // with a right window, the longest tiles come first
  bool has_window_;
  bool is_ragged_;  // sequences have different lengths
  double mean_q_;
  double mean_k_;
  int64_t n_blocks_;  // tiles of a head
  int64_t n_rest_;    // heads, batches and splits
  int64_t n_tiles_;
  int64_t n_slots_;  // for CTAs, or clusters
  int64_t n_rounds_;
  int64_t section_ = 0;
  int64_t n_whole_ = 0;  // blocks with all queries
  int n_samples_ = 0;
  Load samples_[kMaxSamples];
  Load last_;
  Load mean_;
};

}  // namespace

GridShape grid_shape(AnyConfig const& config, int ctas_per_sm) {
  GridShape shape = std::visit(
      [](auto const& c) {
        return GridShape{.d_head = c.d_head,
                         .B_r = c.B_r,
                         .B_c = c.B_c,
                         .n_warpgroups = 1,
                         .max_cluster = 1,
                         .ctas_per_sm = 1,
                         .packs_heads = false,
                         .persistent = false};
      },
      config);
  shape.ctas_per_sm = ctas_per_sm;
  if (auto const* const sm90 = std::get_if<FlashForwardSm90Config>(&config)) {
    shape.n_warpgroups = sm90->n_consumers;
    shape.max_cluster = sm90::max_cluster(*sm90);
    shape.packs_heads = sm90->pack_gqa;
    shape.persistent = sm90->persistent;
  }
  return shape;
}

double expected_time(GridShape const& shape, Costs const& costs, ForwardParams const& params,
                     int n_sms, int num_splits) {
  Grid grid(shape, params, n_sms, num_splits);
  return grid.is_empty() ? costs.launch : grid.time(costs);
}

}  // namespace pyflash
