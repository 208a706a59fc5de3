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
#include "cute_kernels/host/short_form.h"

namespace pyflash {
namespace {

std::shared_mutex map_mutex;
std::map<FlashForwardKernelConfig, Kernel> config_map;
std::atomic<uint64_t> generation = 1;

KernelLibrary const& open_kernel_library(std::string const& path) {
  char const* const advice = "; build it again: python -m codegen";
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  require(handle, "kernel library '", path, "' cannot be loaded: ", handle ? "" : dlerror());
  void* const entry = dlsym(handle, "pyflash_kernel_library");
  require(entry, "'", path, "' is no kernel library: it does not export pyflash_kernel_library");
  KernelLibrary const* const library = reinterpret_cast<decltype(&pyflash_kernel_library)>(entry)();
  require(library->abi == kKernelLibraryAbi, "kernel library '", path, "' has ABI version ",
          library->abi, ", expected ", kKernelLibraryAbi, advice);
  for (int i = 0; i < library->n_rows; ++i) {
    ConfigMapRow const& row = library->rows[i];
    require(short_form(row.config) == row.short_form, "kernel library '", path, "' calls ",
            short_form(row.config), " by the name '", row.short_form, "'", advice);
  }
  return *library;
}

template <class Predicate>
std::vector<Kernel> kernels_where(Predicate&& predicate) {
  std::shared_lock const lock(map_mutex);
  std::vector<Kernel> kernels;
  for (auto const& [config, kernel] : config_map) {
    if (predicate(config)) {
      kernels.push_back(kernel);
    }
  }
  return kernels;
}

// Whether the predicate holds for one of the numbers of "80,90".
template <class Predicate>
bool any_number(std::string_view text, Predicate&& predicate) {
  char const* const end = text.data() + text.size();
  for (char const* at = text.data(); at < end; ++at) {
    int number = 0;
    at = std::from_chars(at, end, number).ptr;
    if (predicate(number)) {
      return true;
    }
  }
  return false;
}

}  // namespace

int64_t load_kernel_library(std::string const& path) {
  KernelLibrary const& library = open_kernel_library(path);
  std::unique_lock const lock(map_mutex);
  for (int i = 0; i < library.n_rows; ++i) {
    config_map.insert_or_assign(library.rows[i].config, Kernel{&library.rows[i], &library});
  }
  generation.fetch_add(1, std::memory_order_release);
  return library.n_rows;
}

uint64_t config_map_generation() { return generation.load(std::memory_order_acquire); }

std::optional<Kernel> find_kernel(FlashForwardKernelConfig const& config) {
  std::shared_lock const lock(map_mutex);
  auto const found = config_map.find(config);
  return found == config_map.end() ? std::nullopt : std::optional(found->second);
}

std::vector<Kernel> all_kernels() {
  return kernels_where([](FlashForwardKernelConfig const&) { return true; });
}

std::vector<Kernel> kernels_for(DType dtype, int d_head) {
  return kernels_where([&](FlashForwardKernelConfig const& config) {
    return config.dtype == dtype && config.d_head == d_head;
  });
}

KernelLibrary const* any_kernel_library() {
  std::shared_lock const lock(map_mutex);
  return config_map.empty() ? nullptr : config_map.begin()->second.library;
}

bool runs_on(ConfigMapRow const& row, int sm_arch) {
  bool const machine_code = any_number(row.sm_archs, [=](int built) {
    return built / 10 == sm_arch / 10 && built % 10 <= sm_arch % 10;
  });
  return machine_code || (row.ptx_arch != 0 && row.ptx_arch <= sm_arch);
}

std::string config_map_json() {
  std::ostringstream json;
  json << "[";
  for (char const* separator = ""; Kernel const& kernel : all_kernels()) {
    ConfigMapRow const& row = *kernel.row;
    json << separator << "{\"config\": \"" << row.short_form << "\", \"sm_archs\": ["
         << row.sm_archs << "], \"ptx_arch\": " << row.ptx_arch
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
    built.emplace(kernel.row->config.dtype, kernel.row->config.d_head);
  }
  std::ostringstream text;
  for (auto const& [dtype, d_head] : built) {
    text << (text.tellp() == 0 ? "built are " : ", ") << name(dtype) << " with d_head " << d_head;
  }
  return built.empty() ? "no kernels are built" : text.str();
}

std::string built_short_forms(DType dtype, int d_head) {
  std::vector<Kernel> const kernels = kernels_for(dtype, d_head);
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
