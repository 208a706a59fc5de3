#include "cute_kernels/host/candidates.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>

namespace pyflash {
namespace {

// The table whose costs count: of the same architecture, that of the GPU with the nearest number of SMs.
TunedTable const* table_of_costs(TunedTables const& tables, CandidatesKey const& key) {
  TunedTable const* nearest = nullptr;
  for (TunedTable const& table : tables) {
    auto const distance = [&](TunedTable const& t) { return std::abs(t.n_sms - key.n_sms); };
    if (table.sm_arch == key.sm_arch && !table.costs.empty() &&
        (nearest == nullptr || distance(table) < distance(*nearest))) {
      nearest = &table;
    }
  }
  return nearest;
}

void look_up(CandidatesKey const& key, Candidates& candidates) {
  auto const& all = candidates.all;
  auto const find = [&](ConfigOf<Forward> const& config) -> std::optional<size_t> {
    auto const found = std::find_if(all.begin(), all.end(), [&](Candidate const& candidate) {
      return candidate.kernel.row->config == config;
    });
    return found == all.end() ? std::nullopt : std::optional<size_t>(found - all.begin());
  };
  candidates.tables = tuned_tables();
  ForwardFeatures features = key.features;
  // What was measured without pages stands for problems with them.
  features.paged_kv = features.fp8_kv = features.gathered_kv = false;
  for (TunedTable const& table : *candidates.tables) {
    if (table.sm_arch != key.sm_arch || table.n_sms != key.n_sms) {
      continue;
    }
    for (TunedChoice const& choice : table.choices) {
      auto const index = find(choice.config);
      if (choice.dtype == key.dtype && choice.d_head == key.d_head && choice.features == features &&
          index) {
        candidates.choices.push_back({*index, &choice, &table});
      }
    }
  }
  if (TunedTable const* const table = table_of_costs(*candidates.tables, key)) {
    for (TunedCosts const& row : table->costs) {
      if (auto const index = find(row.config)) {
        GridShape const shape = grid_shape(row.config, all[*index].ctas_per_sm);
        candidates.priced.push_back({*index, row.kind, shape, row.costs, table});
      }
    }
  }
}

Candidates find_candidates(CandidatesKey const& key) {
  Candidates candidates;
  auto& all = candidates.all;
  int d_head = std::numeric_limits<int>::max();
  for (Kernel<Forward> const& kernel : all_kernels<Forward>()) {
    ConfigMapRow<Forward> const& row = *kernel.row;
    if (row.dtype != key.dtype || row.d_head < key.d_head) {
      continue;
    }
    Fit const fit = fit_of(row, key);
    if (fit.lack == Fit::Lack::kNothing) {
      all.push_back({kernel, fit.ctas_per_sm});
      d_head = std::min(d_head, row.d_head);
    }
  }
  std::erase_if(all, [=](Candidate const& one) { return one.kernel.row->d_head != d_head; });
  std::stable_sort(all.begin(), all.end(), [](Candidate const& a, Candidate const& b) {
    return a.kernel.row->rank < b.kernel.row->rank;
  });
  for (size_t i = 0; i < all.size(); ++i) {
    bool const is_shadowed =
        std::any_of(candidates.by_rank.begin(), candidates.by_rank.end(), [&](size_t first) {
          ConfigMapRow<Forward> const& row = *all[first].kernel.row;
          return row.refusal == nullptr && row.shape.B_r == all[i].kernel.row->shape.B_r;
        });
    if (!is_shadowed) {
      candidates.by_rank.push_back(i);
    }
  }
  look_up(key, candidates);
  return candidates;
}

// A thread's candidates for one generation of the config map and the tables.
struct Cache {
  uint64_t generation = 0;
  std::vector<std::pair<CandidatesKey, Candidates>> found;
};

}  // namespace

ForwardFeatures in_config(ForwardFeatures features, int d_head, int d_head_of_config) {
  ForwardParams params{};
  params.d_head = d_head;
  features.predicated_head_dim = features_needed(params, d_head_of_config).predicated_head_dim;
  return features;
}

Fit fit_of(ConfigMapRow<Forward> const& row, CandidatesKey const& key) {
  ForwardFeatures const needed = in_config(key.features, key.d_head, row.d_head);
  if (key.sm_arch == 0) {
    return {Fit::Lack::kNothing, 0};
  }
  int const ctas = ctas_per_sm(row, key.sm_arch);
  return {ctas == 0             ? Fit::Lack::kCodeForGpu
          : covers(row, needed) ? Fit::Lack::kNothing
                                : Fit::Lack::kFeatures,
          ctas};
}

CostedChoice const* Candidates::find_known(CostedSize const& size) const {
  auto const found = std::find_if(known_.begin(), known_.end(),
                                  [&](CostedChoice const& one) { return one.size == size; });
  return found == known_.end() ? nullptr : &*found;
}

void Candidates::keep(CostedChoice const& choice) const {
  if (known_.size() < kMaxKnown) {
    known_.push_back(choice);
  } else {
    known_[oldest_] = choice;
    oldest_ = (oldest_ + 1) % kMaxKnown;
  }
}

Candidates const& candidates_for(CandidatesKey const& key) {
  thread_local Cache cache;
  // NOTE: read before the map and the tables are: a change in between is then seen at the next call.
  uint64_t const generation = config_map_generation() + tuned_generation();
  if (cache.generation != generation) {
    cache = {.generation = generation, .found = {}};
  }
  for (auto const& [known, candidates] : cache.found) {
    if (known == key) {
      return candidates;
    }
  }
  return cache.found.emplace_back(key, find_candidates(key)).second;
}

}  // namespace pyflash
