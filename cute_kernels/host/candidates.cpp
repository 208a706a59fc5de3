#include "cute_kernels/host/candidates.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace pyflash {
namespace {

bool rank_before(Kernel const& a, Kernel const& b) { return a.row->rank < b.row->rank; }

bool can_run(ConfigMapRow const& row, CandidatesKey const& key) {
  if (row.dtype != key.dtype || row.d_head < key.d_head) {
    return false;
  }
  ForwardFeatures needed = key.features;
  needed.predicated_head_dim = key.d_head < row.d_head;
  return key.sm_arch == 0 || (runs_on(row, key.sm_arch) && covers(row, needed));
}

Candidates find_candidates(CandidatesKey const& key) {
  std::vector<Kernel> kernels = all_kernels();
  std::erase_if(kernels, [&](Kernel const& kernel) { return !can_run(*kernel.row, key); });
  int d_head = std::numeric_limits<int>::max();
  for (Kernel const& kernel : kernels) {
    d_head = std::min(d_head, kernel.row->d_head);
  }
  std::erase_if(kernels, [=](Kernel const& kernel) { return kernel.row->d_head != d_head; });
  std::stable_sort(kernels.begin(), kernels.end(), rank_before);

  Candidates candidates{.count = static_cast<int>(kernels.size()), .kernels = {}};
  for (Kernel const& kernel : kernels) {
    bool const is_shadowed =
        std::any_of(candidates.kernels.begin(), candidates.kernels.end(), [&](Kernel const& first) {
          return first.row->refusal == nullptr && first.row->B_r == kernel.row->B_r;
        });
    if (!is_shadowed) {
      candidates.kernels.push_back(kernel);
    }
  }
  return candidates;
}

// What a thread found in a generation of the config map.
struct Cache {
  uint64_t generation = 0;
  std::vector<std::pair<CandidatesKey, Candidates>> found;
};

}  // namespace

Candidates const& candidates_for(CandidatesKey const& key) {
  thread_local Cache cache;
  // NOTE: read before the map is: a change in between is then seen at the next call.
  uint64_t const generation = config_map_generation();
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
