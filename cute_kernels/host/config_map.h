// The config maps of the process, one for each op: the rows of every kernel library loaded so far.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "cute_kernels/append.h"
#include "cute_kernels/host/cubins.h"
#include "cute_kernels/host/errors.h"
#include "cute_kernels/merge_states.h"
#include "cute_kernels/registry.h"
#include "cute_kernels/slots.h"

namespace pyflash {

template <class Op>
using ConfigMap = std::map<ConfigOf<Op>, Kernel<Op>>;

// What writes into pages and merges states; nullptr: no library is loaded that does.
struct Helpers {
  decltype(&pyflash_append_rows) append_rows = nullptr;
  decltype(&pyflash_find_slots) find_slots = nullptr;
  decltype(&pyflash_merge_states) merge_states = nullptr;
};

// The maps, the newest library, nullptr without one, and the newest helpers: they do not change while this lives.
struct ReadConfigMaps {
  std::shared_lock<std::shared_mutex> lock;
  OfEachOp<ConfigMap> const& maps;
  KernelLibrary const* newest_library;
  Helpers helpers;

  template <class Op>
  ConfigMap<Op> const& of() const {
    return std::get<ConfigMap<Op>>(maps);
  }
};
ReadConfigMaps read_config_maps();

// The same, for writing: readers notice by config_map_generation.
struct WriteConfigMaps {
  std::unique_lock<std::shared_mutex> lock;
  OfEachOp<ConfigMap>& maps;
  KernelLibrary const*& newest_library;
  Helpers& helpers;

  ~WriteConfigMaps();
};
WriteConfigMaps write_config_maps();

// Loads a kernel library and returns the number of its rows. A config that the map already holds from then on means the
// new library's kernel. Refuses a file that is not a kernel library of this version, and then changes nothing.
// Thread-safe, as are the readers below.
int64_t load_kernel_library(std::string const& path);

// Adds the kernels of a cubin to those of its config, which from then on runs on the cubin's architecture alone; those with
// the same features are replaced. Refuses a file that cannot be read, and where no kernel library is loaded: it is these
// that know CUDA.
template <class Op>
void load_cubin(Cubin<Op> const& cubin) {
  WriteConfigMaps const written = write_config_maps();
  require(written.newest_library, "cubin '", cubin.path,
          "' cannot be launched: a kernel library does that, and none is loaded; to build one: "
          "pyflash build");
  auto& map = std::get<ConfigMap<Op>>(written.maps);
  auto const before = map.find(cubin.config);
  // NOTE: never freed, as no kernel is.
  auto const* const row = new CubinRow<Op>(cubin, *written.newest_library,
                                           before == map.end() ? nullptr : &before->second);
  map.insert_or_assign(cubin.config, row->kernel());
}

// What a kernel library must have been built for: "3-0123456789abcdef", of kKernelLibraryAbi and kConfigsDigest.
std::string kernel_library_abi();

// Changes whenever a map does.
uint64_t config_map_generation();

template <class Op>
std::optional<Kernel<Op>> find_kernel(ConfigOf<Op> const& config) {
  ReadConfigMaps const read = read_config_maps();
  ConfigMap<Op> const& map = read.of<Op>();
  auto const found = map.find(config);
  return found == map.end() ? std::nullopt : std::optional(found->second);
}

// In ascending order of config.
template <class Op>
std::vector<Kernel<Op>> all_kernels() {
  ReadConfigMaps const read = read_config_maps();
  std::vector<Kernel<Op>> kernels;
  for (auto const& [config, kernel] : read.of<Op>()) {
    kernels.push_back(kernel);
  }
  return kernels;
}

// A loaded library, to ask about the GPU; nullptr: none is.
KernelLibrary const* any_kernel_library();

Helpers loaded_helpers();

// CTAs that run on an SM of compute capability sm_arch (major * 10 + minor) at a time; 0: the row has no code for it, or the
// config is not legal there. Code is machine code of the same major version and no newer minor one (that for "90a" runs on 90
// alone), or PTX that is not newer. An architecture that the resource model does not know is taken for the next older one.
int ctas_per_sm(RowOfAnyOp const& row, int sm_arch);

// Whether some built combination covers the features.
template <class Op>
bool covers(ConfigMapRow<Op> const& row, typename Op::Features const& needed) {
  return std::any_of(row.features.begin(), row.features.end(),
                     [&](auto const& built) { return covers(built, needed); });
}

// The rows of every op: [{"config": "(FP16, ...", "features": ["plain", "right_window"], "sm_archs": [80, 90],
// "ptx_arch": 90, "n_threads": 128, "smem_bytes": 49152, "rank": 0}, ...]
std::string config_map_json();

// What is built of an op, for a refusal: dtypes with their head dimensions; and for one such pair the short forms.
using Built = std::vector<RowOfAnyOp const*>;
template <class Op>
Built built_rows() {
  Built rows;
  for (Kernel<Op> const& kernel : all_kernels<Op>()) {
    rows.push_back(kernel.row);
  }
  return rows;
}
std::string built_head_dims(Built const& built);
std::string built_short_forms(Built const& built, DType dtype, int d_head);

}  // namespace pyflash
