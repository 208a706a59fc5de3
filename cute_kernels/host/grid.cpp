#include "cute_kernels/host/grid.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "cute_kernels/families.h"
#include "cute_kernels/host/splits.h"
#include "cute_kernels/sm90/shape.h"

namespace pyflash {
namespace {

constexpr int64_t kMaxRounds = 6;  // that are followed one by one; more are taken for balanced
constexpr int64_t kMaxRaggedRounds = 4;  // the same, of packed sequences
// Of a section of heads: up to the one K and V stay in L2, from the other on they are read for each tile.
constexpr double kKeptBytes = 18e6, kLostBytes = 50e6;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

Load heavier(Load const& a, Load const& b) { return a.weight() < b.weight() ? b : a; }

}  // namespace

GridShape grid_shape(AnyConfig const& config, int ctas_per_sm) {
  GridShape shape = visit_family(
      config,
      [](FlashForwardKernelConfig const&) {
        return GridShape{.n_warpgroups = 1, .max_cluster = 1};
      },
      [](FlashForwardSm90Config const& c) {
        return GridShape{.n_warpgroups = c.n_consumers,
                         .max_cluster = sm90::max_cluster(c),
                         .packs_heads = c.pack_gqa,
                         .persistent = c.persistent};
      });
  shape.ctas_per_sm = ctas_per_sm;
  std::visit([&](auto const& c) { shape.d_head = c.d_head, shape.B_r = c.B_r, shape.B_c = c.B_c; },
             config);
  return shape;
}

Grid::Grid(GridShape const& shape, ForwardParams const& params, int n_sms, int num_splits)
    : shape_(shape), params_(params), n_sms_(n_sms), num_splits_(num_splits) {
  n_heads_ = shape.packs_heads ? params.heads_kv : params.heads;
  int const group = params.heads / std::max(n_heads_, 1);
  warpgroup_queries_ = std::max(shape.B_r / shape.n_warpgroups / std::max(group, 1), 1);
  n_queries_ = warpgroup_queries_ * shape.n_warpgroups;
  per_key_ = 1. / shape.B_c;
  is_sorted_ = params.window_right < kNoWindow;
  has_window_ = is_sorted_ || params.window_left < kNoWindow;
  double const batch = std::max(params.batch, 1);
  bool const packed = params.total_q > 0;
  mean_q_ = packed ? params.total_q / batch : params.seqlen_q;
  mean_k_ = packed ? params.total_k / batch : params.seqlen_k;
  is_ragged_ = mean_q_ < 0.999 * params.seqlen_q;
  n_blocks_ = static_cast<int>(ceil_div(params.seqlen_q, n_queries_));
  int64_t const n_pairs = int64_t(n_heads_) * params.batch;
  cluster_ = sm90::cluster_of(num_splits, shape.max_cluster, n_blocks_ * n_pairs,
                              int64_t(n_sms) * shape.ctas_per_sm);
  n_rest_ = n_pairs * (num_splits / cluster_);
  n_tiles_ = n_blocks_ * n_rest_;
  n_slots_ = std::max<int64_t>(int64_t(n_sms) * shape.ctas_per_sm / cluster_, 1);
  n_rounds_ = ceil_div(n_tiles_, n_slots_);
  if (n_tiles_ > 0) {
    sections_ = sections();
    set_samples();
  }
}

Load Grid::busiest() const {
  Load const longest = longest_tile();
  return heavier(of_busiest_slot(longest), longest);
}

double Grid::slowdown(double share) const {
  auto const slots = static_cast<double>(n_slots_);
  double const n_tiles = static_cast<double>(n_tiles_) * mean_.tiles;
  auto const slower = [&](double n_slots_taken) {
    double const on_sm = std::ceil(n_slots_taken * cluster_ / n_sms_ - 1e-9);
    return std::max(1.0, std::clamp<double>(on_sm, 1, shape_.ctas_per_sm) * share);
  };
  if (n_tiles_ <= n_slots_) {
    // Those that do not fit share SMs with others.
    bool const is_tight = cluster_ > 1 && n_tiles_ > clusters_that_fit(cluster_, 1, n_sms_);
    return std::max(slower(n_tiles), is_tight ? 1.5 * share : 0);
  }
  double const rest = std::fmod(n_tiles, slots);
  // The last round has fewer CTAs on an SM.
  double const last = slower(rest == 0 ? slots : rest), full = slower(slots);
  return full - (full - last) / std::ceil(static_cast<double>(n_tiles_) / slots);
}

// Blocks of keys that these queries attend.
int Grid::count_blocks(int first, int n, Lengths const& lengths) const {
  int const offset = lengths.k - lengths.q;
  int const last = std::min(first + n, lengths.q) - 1;
  int begin = 0, end = lengths.k;
  if (params_.window_left < kNoWindow) {
    begin = std::clamp(first + offset - params_.window_left, 0, lengths.k);
  }
  if (params_.window_right < kNoWindow) {
    end = std::clamp(last + offset + params_.window_right + 1, 0, lengths.k);
  }
  // NOTE: halves keep the products, cheaper than quotients, away from whole numbers.
  auto const divided = [&](int n) { return static_cast<int>((n + 0.5) * per_key_); };
  return std::max(0, divided(end + shape_.B_c - 1) - divided(begin));
}

Load Grid::tile(int block, Lengths const& lengths) const {
  int const first = block * n_queries_;
  if (first >= lengths.q) {
    return {};
  }
  double const steps = count_blocks(first, n_queries_, lengths);
  if (shape_.n_warpgroups == 1) {
    return {1, steps, steps};
  }
  int attended = 0;
  for (int i = 0; i < shape_.n_warpgroups; ++i) {
    int const begin = first + i * warpgroup_queries_;
    attended += begin < lengths.q ? count_blocks(begin, warpgroup_queries_, lengths) : 0;
  }
  return {1, steps, static_cast<double>(attended) / shape_.n_warpgroups};
}

// The mean of sequences of the lengths that there are.
Load Grid::mean_tile(int block) const {
  if (!is_ragged_) {
    return tile(block, {params_.seqlen_q, params_.seqlen_k});
  }
  Load sum;
  for (double const quantile : {1 / 6., 3 / 6., 5 / 6.}) {
    auto const length = [=](double mean, int largest) {
      double const length = largest - 2 * (largest - mean) * (1 - quantile);
      return static_cast<int>(std::max(1.0, std::round(length)));
    };
    sum = sum + tile(block, {length(mean_q_, params_.seqlen_q), length(mean_k_, params_.seqlen_k)});
  }
  return sum * (1 / 3.);
}

// Some of a sequence's tiles, the last one, which may hold fewer queries, and the mean.
void Grid::set_samples() {
  n_whole_ = is_ragged_ ? n_blocks_ : std::max(n_blocks_ - 1, 1);
  bool const same = !has_window_ && !is_ragged_;
  n_samples_ = same ? 1 : std::min(n_whole_, kMaxSamples);
  Load sum;
  for (int i = 0; i < n_samples_; ++i) {
    samples_[i] =
        mean_tile(static_cast<int>(int64_t(i) * (n_whole_ - 1) / std::max(n_samples_ - 1, 1)));
    sum = sum + samples_[i];
  }
  last_ = mean_tile(n_blocks_ - 1);
  if (n_samples_ > 1 && n_samples_ < n_whole_) {
    sum = (sum + (samples_[0] + samples_[n_samples_ - 1]) * -0.5) *
          (static_cast<double>(n_samples_) / (n_samples_ - 1));
  }
  double const n_whole = n_whole_;
  mean_ = (sum * (n_whole / n_samples_) + last_ * (n_blocks_ - n_whole)) * (1. / n_blocks_);
}

Load Grid::at(int block) const {
  if (block >= n_whole_) {
    return last_;
  }
  if (n_samples_ == n_whole_) {
    return samples_[block];
  }
  double const place = double(block) * (n_samples_ - 1) / std::max(n_whole_ - 1, 1);
  int const below = static_cast<int>(place), above = std::min(below + 1, n_samples_ - 1);
  return samples_[below] * (below + 1 - place) + samples_[above] * (place - below);
}

Load Grid::longest_tile() const {
  Load longest;
  if (is_ragged_) {
    for (int const block : {0, (n_blocks_ - 1) / 2, n_blocks_ - 2, n_blocks_ - 1}) {
      longest = heavier(longest, tile(std::max(block, 0), {params_.seqlen_q, params_.seqlen_k}));
    }
  } else {
    longest = *std::max_element(samples_, samples_ + n_samples_, [](Load const& a, Load const& b) {
      return a.weight() < b.weight();
    });
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

sm90::Sections Grid::sections() const {
  if (!is_sorted_) {
    int64_t const heads = std::clamp<int64_t>(ceil_div(n_slots_, n_blocks_), 1, n_rest_);
    return {.heads = heads, .last = 0};
  }
  int64_t const bytes_of_kv = int64_t(params_.seqlen_k) * 4 * shape_.d_head;
  return sm90::divide_into_sections(shape_.persistent && cluster_ == 1, n_slots_, n_blocks_,
                                    n_rest_, n_heads_ / params_.heads_kv, bytes_of_kv);
}

Load Grid::of_busiest_slot(Load const& longest) const {
  auto const n_slots = static_cast<double>(n_slots_), rounds = static_cast<double>(n_rounds_);
  if (n_rounds_ == 1) {
    return longest;
  }
  Load const even = mean_ * (static_cast<double>(n_tiles_) / n_slots);
  if (is_ragged_ && !shape_.persistent) {
    return even + longest * (has_window_ ? 0.15 : 0.3);
  }
  if (is_ragged_ && !has_window_ && n_rounds_ <= kMaxRaggedRounds) {
    return of_busiest_ragged();
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

// Of some slots, where the first sequence is the longest and the others are as long in the mean as the total tells.
Load Grid::of_busiest_ragged() const {
  constexpr int kSlots = 33;
  int const n_sequences = params_.batch;
  auto const others = [&](double mean, int largest) {
    return n_sequences > 1 ? (mean * n_sequences - largest) / (n_sequences - 1) : mean;
  };
  double const others_q = others(mean_q_, params_.seqlen_q);
  double const others_k = others(mean_k_, params_.seqlen_k);
  int const n_tiles = static_cast<int>(n_tiles_), n_slots = static_cast<int>(n_slots_);
  int const tiles_of_sequence = n_tiles / n_sequences;
  Load busiest;
  for (int i = 0; i < kSlots; ++i) {
    int const slot = i * (n_slots - 1) / (kSlots - 1);
    Load load;
    for (int round = 0; round < n_rounds_; ++round) {
      int const index = round * n_slots + (round % 2 == 0 ? slot : n_slots - 1 - slot);
      if (index >= n_tiles) {
        continue;
      }
      int const sequence = index / tiles_of_sequence;
      // Shares of a length, evenly spread from -1 to 1 whatever their number.
      double const turns = 0.5 + (sequence - 1) * 0.618034;
      double const place = (turns - std::floor(turns)) * 2 - 1;
      auto const length = [&](double mean, int largest) {
        return sequence == 0 ? largest : std::max(mean + (largest - mean) * place, 1.0);
      };
      if (index % n_blocks_ * n_queries_ < length(others_q, params_.seqlen_q)) {
        double const steps = std::ceil(length(others_k, params_.seqlen_k) * per_key_);
        load = load + Load{1, steps, steps};
      }
    }
    busiest = heavier(busiest, load);
  }
  return busiest;
}

Load Grid::of_busiest_unsorted(Load const& even) const {
  auto const rounds = static_cast<double>(n_rounds_);
  if (shape_.persistent && n_slots_ % n_blocks_ == 0) {  // the same two tiles in turn
    Load busiest;
    for (int i = 0; i < std::min((n_blocks_ + 1) / 2, kMaxSamples); ++i) {
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
Load Grid::of_busiest_sorted() const {
  int64_t const section = sections_.heads * n_blocks_;
  int64_t const n_full = sections_.last, rest = n_tiles_ - n_full * section;
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
Load Grid::of_section(int64_t slot, int64_t n_tiles) const {
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
      int const from_longest = static_cast<int>(index) / static_cast<int>(n_heads);
      load = load + at(first_is_longest ? from_longest : n_blocks_ - 1 - from_longest);
    }
  }
  return load;
}

double Grid::bytes_of_memory() const {
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
  double const of_section = static_cast<double>(sections_.heads) / n_heads_ * of_tile * per_key;
  double const lost = std::clamp((of_section - kKeptBytes) / (kLostBytes - kKeptBytes), 0.0, 1.0);
  return once + lost * std::max(bytes_of_tiles() - once, 0.0) + bytes_of_rows();
}

}  // namespace pyflash
