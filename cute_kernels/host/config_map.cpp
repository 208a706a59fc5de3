#include "cute_kernels/host/config_map.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string_view>

#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/names.h"
#include "cute_kernels/host/short_form.h"

namespace pyflash {
namespace {

std::shared_mutex map_mutex;
std::map<AnyConfig, Kernel> config_map;
KernelLibrary const* newest_library = nullptr;
std::atomic<uint64_t> generation = 1;

KernelLibrary const& open_kernel_library(std::string const& path) {
  char const* const advice = "; build it again: pyflash build";
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  require(handle, "kernel library '", path, "' cannot be loaded: ", handle ? "" : dlerror());
  void* const entry = dlsym(handle, "pyflash_kernel_library");
  require(entry, "'", path, "' is no kernel library: it does not export pyflash_kernel_library");
  KernelLibrary const* const library = reinterpret_cast<decltype(&pyflash_kernel_library)>(entry)();
  require(library->abi == kKernelLibraryAbi, "kernel library '", path, "' has ABI version ",
          library->abi, ", expected ", kKernelLibraryAbi, advice);
  require(library->configs_digest == std::string_view(kConfigsDigest), "kernel library '", path,
          "' was built for other fields of configs", advice);
  for (ConfigMapRow const& row : library->rows) {
    require(short_form(row.config) == row.short_form, "kernel library '", path, "' calls ",
            short_form(row.config), " by the name '", row.short_form, "'", advice);
  }
  return *library;
}

// Whether machine code for `target`, "90" or "90a", runs on a device of compute capability sm_arch.
bool machine_code_runs(std::string_view target, int sm_arch) {
  int built = 0;
  char const* const end = target.data() + target.size();
  bool const is_specific = std::from_chars(target.data(), end, built).ptr != end;
  return is_specific ? built == sm_arch : built / 10 == sm_arch / 10 && built % 10 <= sm_arch % 10;
}

}  // namespace

int64_t load_kernel_library(std::string const& path) {
  KernelLibrary const& library = open_kernel_library(path);
  std::unique_lock const lock(map_mutex);
  for (ConfigMapRow const& row : library.rows) {
    config_map.insert_or_assign(row.config, Kernel{.row = &row, .library = &library});
  }
  newest_library = &library;
  generation.fetch_add(1, std::memory_order_release);
  return static_cast<int64_t>(library.rows.size);
}

void load_cubin(Cubin const& cubin) {
  std::unique_lock const lock(map_mutex);
  require(newest_library, "cubin '", cubin.path,
          "' cannot be launched: a kernel library does that, and none is loaded; to build one: "
          "pyflash build");
  auto const before = config_map.find(cubin.config);
  // NOTE: never freed, as no kernel is.
  auto const* const row =
      new CubinRow(cubin, *newest_library, before == config_map.end() ? nullptr : &before->second);
  config_map.insert_or_assign(cubin.config, row->kernel());
  generation.fetch_add(1, std::memory_order_release);
}

std::string kernel_library_abi() { return sentence(kKernelLibraryAbi, "-", kConfigsDigest); }

uint64_t config_map_generation() { return generation.load(std::memory_order_acquire); }

std::optional<Kernel> find_kernel(AnyConfig const& config) {
  std::shared_lock const lock(map_mutex);
  auto const found = config_map.find(config);
  return found == config_map.end() ? std::nullopt : std::optional(found->second);
}

std::vector<Kernel> all_kernels() {
  std::shared_lock const lock(map_mutex);
  std::vector<Kernel> kernels;
  for (auto const& [config, kernel] : config_map) {
    kernels.push_back(kernel);
  }
  return kernels;
}

KernelLibrary const* any_kernel_library() {
  std::shared_lock const lock(map_mutex);
  return newest_library;
}

bool runs_on(ConfigMapRow const& row, int sm_arch) {
  for (ArchCtas const& known : row.ctas_per_sm) {
    if (known.sm_arch == sm_arch && known.ctas == 0) {
      return false;
    }
  }
  for (std::string_view targets = row.sm_archs; !targets.empty();) {
    size_t const length = std::min(targets.find(','), targets.size());
    if (machine_code_runs(targets.substr(0, length), sm_arch)) {
      return true;
    }
    targets.remove_prefix(std::min(length + 1, targets.size()));
  }
  return row.ptx_arch != 0 && row.ptx_arch <= sm_arch;
}

int ctas_per_sm(ConfigMapRow const& row, int sm_arch) {
  int per_sm = 0;
  for (ArchCtas const& known : row.ctas_per_sm) {
    per_sm = known.sm_arch <= sm_arch ? known.ctas : per_sm;
  }
  return std::max(per_sm, 1);
}

bool covers(ConfigMapRow const& row, ForwardFeatures needed) {
  return std::any_of(row.features.begin(), row.features.end(),
                     [&](ForwardFeatures const& built) { return built.covers(needed); });
}

char const* refusal(ConfigMapRow const& row, ForwardParams const& params) {
  return row.refusal ? row.refusal(row, params) : nullptr;
}

std::string config_map_json() {
  std::ostringstream json;
  json << "[";
  for (char const* separator = ""; Kernel const& kernel : all_kernels()) {
    ConfigMapRow const& row = *kernel.row;
    json << separator << "{\"config\": \"" << row.short_form << "\", \"features\": [";
    for (char const* comma = ""; ForwardFeatures const& features : row.features) {
      json << comma << "\"" << name(features) << "\"";
      comma = ", ";
    }
    json << "], \"sm_archs\": \"" << row.sm_archs << "\", \"ptx_arch\": " << row.ptx_arch
         << ", \"n_threads\": " << row.n_threads << ", \"smem_bytes\": " << row.smem_bytes
         << ", \"rank\": " << row.rank << "}";
    separator = ", ";
  }
  json << "]";
  return json.str();
}

std::string built_head_dims() {
  std::set<std::pair<DType, int>> built;
  for (Kernel const& kernel : all_kernels()) {
    built.emplace(kernel.row->dtype, kernel.row->d_head);
  }
  std::ostringstream text;
  for (auto const& [dtype, d_head] : built) {
    text << (text.tellp() == 0 ? "built are " : ", ") << name(dtype) << " with d_head " << d_head;
  }
  return built.empty() ? "no kernels are built" : text.str();
}

std::string built_short_forms(DType dtype, int d_head) {
  std::vector<Kernel> kernels = all_kernels();
  std::erase_if(kernels, [=](Kernel const& kernel) {
    return kernel.row->dtype != dtype || kernel.row->d_head != d_head;
  });
  if (kernels.empty()) {
    return built_head_dims();
  }
  constexpr size_t kListed = 6;
  std::ostringstream text;
  text << "built for " << name(dtype) << " with d_head " << d_head << " are ";
  for (size_t i = 0; i < std::min(kernels.size(), kListed); ++i) {
    text << (i == 0 ? "'" : ", '") << kernels[i].row->short_form << "'";
  }
  if (kernels.size() > kListed) {
    text << " and " << kernels.size() - kListed << " more (pyflash.built_configs() lists them)";
  }
  return text.str();
}

}  // namespace pyflash
