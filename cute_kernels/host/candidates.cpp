#include "cute_kernels/host/candidates.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

namespace pyflash {
namespace {

bool rank_before(Kernel<Forward> const& a, Kernel<Forward> const& b) {
  return a.row->rank < b.row->rank;
}

bool can_run(ConfigMapRow<Forward> const& row, CandidatesKey const& key) {
  if (row.dtype != key.dtype || row.d_head < key.d_head) {
    return false;
  }
  ForwardFeatures const needed = in_config(key.features, key.d_head, row.d_head);
  return key.sm_arch == 0 || (runs_on(row, key.sm_arch) && covers(row, needed));
}

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

// `kernels`: all that are candidates.
void look_up(std::vector<Kernel<Forward>> const& kernels, CandidatesKey const& key,
             Candidates& candidates) {
  auto const find = [&](ConfigOf<Forward> const& config) {
    return std::find_if(kernels.begin(), kernels.end(), [&](Kernel<Forward> const& kernel) {
      return kernel.row->config == config;
    });
  };
  candidates.tables = tuned_tables();
  for (TunedTable const& table : *candidates.tables) {
    if (table.sm_arch != key.sm_arch || table.n_sms != key.n_sms) {
      continue;
    }
    for (TunedChoice const& choice : table.choices) {
      auto const kernel = find(choice.config);
      if (choice.dtype == key.dtype && choice.d_head == key.d_head &&
          choice.features == key.features && kernel != kernels.end()) {
        candidates.choices.push_back({*kernel, &choice, &table});
      }
    }
  }
  if (TunedTable const* const table = table_of_costs(*candidates.tables, key)) {
    for (TunedCosts const& row : table->costs) {
      if (auto const kernel = find(row.config); kernel != kernels.end()) {
        GridShape const shape = grid_shape(row.config, ctas_per_sm(*kernel->row, key.sm_arch));
        candidates.priced.push_back({*kernel, row.kind, shape, row.costs, table});
      }
    }
  }
}

Candidates find_candidates(CandidatesKey const& key) {
  std::vector<Kernel<Forward>> kernels = all_kernels<Forward>();
  std::erase_if(kernels, [&](Kernel<Forward> const& kernel) { return !can_run(*kernel.row, key); });
  int d_head = std::numeric_limits<int>::max();
  for (Kernel<Forward> const& kernel : kernels) {
    d_head = std::min(d_head, kernel.row->d_head);
  }
  std::erase_if(kernels,
                [=](Kernel<Forward> const& kernel) { return kernel.row->d_head != d_head; });
  std::stable_sort(kernels.begin(), kernels.end(), rank_before);

  Candidates candidates;
  candidates.count = static_cast<int>(kernels.size());
  look_up(kernels, key, candidates);
  for (Kernel<Forward> const& kernel : kernels) {
    bool const is_shadowed = std::any_of(
        candidates.kernels.begin(), candidates.kernels.end(), [&](Kernel<Forward> const& first) {
          return first.row->refusal == nullptr && first.row->shape.B_r == kernel.row->shape.B_r;
        });
    if (!is_shadowed) {
      candidates.kernels.push_back(kernel);
    }
  }
  return candidates;
}

// What a thread found in a generation of the config map and the tables.
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
