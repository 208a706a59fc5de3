#include "cute_kernels/host/config_map.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string_view>

#include "cute_kernels/host/names.h"
#include "cute_kernels/host/short_form.h"
#include "cute_kernels/host/variant_map.h"
#include "cute_kernels/variant_row.h"

namespace pyflash {
namespace {

std::shared_mutex maps_mutex;
OfEachOp<ConfigMap> config_maps;
KernelLibrary const* newest_library = nullptr;
Helpers helpers;
std::atomic<uint64_t> generation = 1;

struct Opened {
  KernelLibrary const& library;
  Span<VariantRow> variants;
  Span<GradientRow> gradients;
  Helpers helpers;
};

Opened open_kernel_library(std::string const& path) {
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
  for_each_op([&]<class Op>(Op) {
    for (ConfigMapRow<Op> const& row : library->of<Op>().rows) {
      std::string const expected = short_form(any_config(row.config));
      require(expected == row.short_form, "kernel library '", path, "' calls ", expected,
              " by the name '", row.short_form, "'", advice);
    }
  });
  auto const variants =
      reinterpret_cast<decltype(&pyflash_variant_rows)>(dlsym(handle, "pyflash_variant_rows"));
  auto const gradients =
      reinterpret_cast<decltype(&pyflash_gradient_rows)>(dlsym(handle, "pyflash_gradient_rows"));
  return {*library,
          variants ? *variants() : Span<VariantRow>{},
          gradients ? *gradients() : Span<GradientRow>{},
          {.append_rows = reinterpret_cast<decltype(&pyflash_append_rows)>(
               dlsym(handle, "pyflash_append_rows")),
           .find_slots =
               reinterpret_cast<decltype(&pyflash_find_slots)>(dlsym(handle, "pyflash_find_slots")),
           .merge_states = reinterpret_cast<decltype(&pyflash_merge_states)>(
               dlsym(handle, "pyflash_merge_states"))}};
}

// Whether machine code for `target`, "90" or "90a", runs on a device of compute capability sm_arch.
bool machine_code_runs(std::string_view target, int sm_arch) {
  int built = 0;
  char const* const end = target.data() + target.size();
  bool const is_specific = std::from_chars(target.data(), end, built).ptr != end;
  return is_specific ? built == sm_arch : built / 10 == sm_arch / 10 && built % 10 <= sm_arch % 10;
}

bool has_code_for(RowOfAnyOp const& row, int sm_arch) {
  for (std::string_view targets = row.sm_archs; !targets.empty();) {
    size_t const length = std::min(targets.find(','), targets.size());
    if (machine_code_runs(targets.substr(0, length), sm_arch)) {
      return true;
    }
    targets.remove_prefix(std::min(length + 1, targets.size()));
  }
  return row.ptx_arch != 0 && row.ptx_arch <= sm_arch;
}

}  // namespace

ReadConfigMaps read_config_maps() {
  return {std::shared_lock(maps_mutex), config_maps, newest_library, helpers};
}

WriteConfigMaps write_config_maps() {
  return {std::unique_lock(maps_mutex), config_maps, newest_library, helpers};
}

WriteConfigMaps::~WriteConfigMaps() { generation.fetch_add(1, std::memory_order_release); }

int64_t load_kernel_library(std::string const& path) {
  auto const [library, variants, gradients, own] = open_kernel_library(path);
  WriteConfigMaps const written = write_config_maps();
  size_t n_rows = 0;
  for_each_op([&]<class Op>(Op) {
    for (ConfigMapRow<Op> const& row : library.of<Op>().rows) {
      std::get<ConfigMap<Op>>(written.maps)
          .insert_or_assign(row.config, Kernel<Op>{.row = &row, .library = &library});
      ++n_rows;
    }
  });
  written.newest_library = &library;
  auto const take = [](auto& newest, auto* own) { newest = own != nullptr ? own : newest; };
  take(written.helpers.append_rows, own.append_rows);
  take(written.helpers.find_slots, own.find_slots);
  take(written.helpers.merge_states, own.merge_states);
  add_variant_rows(variants, library);
  add_variant_rows(gradients, library);
  return static_cast<int64_t>(n_rows + variants.size + gradients.size);
}

std::string kernel_library_abi() { return sentence(kKernelLibraryAbi, "-", kConfigsDigest); }

uint64_t config_map_generation() { return generation.load(std::memory_order_acquire); }

KernelLibrary const* any_kernel_library() { return read_config_maps().newest_library; }

Helpers loaded_helpers() { return read_config_maps().helpers; }

int ctas_per_sm(RowOfAnyOp const& row, int sm_arch) {
  int per_sm = 0;
  for (ArchCtas const& known : row.ctas_per_sm) {
    per_sm = known.sm_arch <= sm_arch ? known.ctas : per_sm;
    if (known.sm_arch == sm_arch && known.ctas == 0) {
      return 0;
    }
  }
  return has_code_for(row, sm_arch) ? std::max(per_sm, 1) : 0;
}

std::string config_map_json() {
  std::ostringstream json;
  json << "[";
  char const* separator = "";
  for_each_op([&]<class Op>(Op) {
    for (Kernel<Op> const& kernel : all_kernels<Op>()) {
      ConfigMapRow<Op> const& row = *kernel.row;
      json << separator << "{\"config\": \"" << row.short_form << "\", \"features\": [";
      for (char const* comma = ""; auto const& features : row.features) {
        json << comma << "\"" << name(features) << "\"";
        comma = ", ";
      }
      json << "], \"sm_archs\": \"" << row.sm_archs << "\", \"ptx_arch\": " << row.ptx_arch
           << ", \"n_threads\": " << row.n_threads << ", \"smem_bytes\": " << row.smem_bytes
           << ", \"rank\": " << row.rank << "}";
      separator = ", ";
    }
  });
  json << "]";
  return json.str();
}

std::string built_head_dims(Built const& built) {
  std::set<std::pair<DType, int>> pairs;
  for (RowOfAnyOp const* row : built) {
    pairs.emplace(row->dtype, row->d_head);
  }
  std::ostringstream text;
  for (auto const& [dtype, d_head] : pairs) {
    text << (text.tellp() == 0 ? "built are " : ", ") << name(dtype) << " with d_head " << d_head;
  }
  return pairs.empty() ? "no kernels are built" : text.str();
}

std::string built_short_forms(Built const& built, DType dtype, int d_head) {
  Built rows = built;
  std::erase_if(
      rows, [=](RowOfAnyOp const* row) { return row->dtype != dtype || row->d_head != d_head; });
  if (rows.empty()) {
    return built_head_dims(built);
  }
  constexpr size_t kListed = 6;
  std::ostringstream text;
  text << "built for " << name(dtype) << " with d_head " << d_head << " are ";
  for (size_t i = 0; i < std::min(rows.size(), kListed); ++i) {
    text << (i == 0 ? "'" : ", '") << rows[i]->short_form << "'";
  }
  if (rows.size() > kListed) {
    text << " and " << rows.size() - kListed << " more (pyflash.built_configs() lists them)";
  }
  return text.str();
}

}  // namespace pyflash
