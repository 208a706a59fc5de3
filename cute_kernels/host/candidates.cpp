#include "cute_kernels/host/candidates.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace pyflash {
namespace {

bool rank_before(Kernel const& a, Kernel const& b) { return a.row->rank < b.row->rank; }

bool same_B_r(Kernel const& a, Kernel const& b) { return a.row->config.B_r == b.row->config.B_r; }

Candidates find_candidates(CandidatesKey const& key) {
  std::vector<Kernel> kernels = all_kernels();
  std::erase_if(kernels, [&](Kernel const& kernel) {
    auto const& config = kernel.row->config;
    return config.dtype != key.dtype || config.d_head < key.d_head ||
           (key.sm_arch != 0 && !runs_on(*kernel.row, key.sm_arch));
  });
  int d_head = std::numeric_limits<int>::max();
  for (Kernel const& kernel : kernels) {
    d_head = std::min(d_head, kernel.row->config.d_head);
  }
  std::erase_if(kernels, [=](Kernel const& kernel) { return kernel.row->config.d_head != d_head; });
  std::stable_sort(kernels.begin(), kernels.end(), rank_before);

  Candidates candidates{.count = static_cast<int>(kernels.size())};
  auto& firsts = candidates.first_of_each_B_r;
  for (Kernel const& kernel : kernels) {
    if (std::none_of(firsts.begin(), firsts.end(),
                     [&](Kernel const& first) { return same_B_r(first, kernel); })) {
      firsts.push_back(kernel);
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
