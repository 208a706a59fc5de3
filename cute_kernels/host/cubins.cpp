#include "cute_kernels/host/cubins.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string_view>

#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/short_form.h"

namespace pyflash {
namespace {

int count(ForwardFeatures const& features) {
  return features.right_window + features.left_window + features.predicated_head_dim +
         features.softcap + features.sinks;
}

}  // namespace

std::string read_cubin(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  require(file.good(), "cubin '", path, "' cannot be read; compile it again");
  std::string image(std::istreambuf_iterator<char>(file), {});
  require(std::string_view(image).starts_with("\x7f"
                                              "ELF"),
          "'", path, "' is no cubin: it does not begin as an ELF file does");
  return image;
}

int Kernel::launch(ForwardParams const& params, void* stream) const {
  return cubins ? cubins->launch(params, stream) : row->launch(params, stream);
}

CubinRow::CubinRow(Cubin const& cubin, KernelLibrary const& library, Kernel const* before)
    : short_form_(short_form(cubin.config)),
      sm_arch_(cubin.sm_arch),
      ctas_{std::atoi(cubin.sm_arch.c_str()), cubin.ctas_per_sm},
      library_(&library),
      before_(before ? *before : Kernel{}) {
  struct Entry {
    ForwardFeatures features;
    std::shared_ptr<Loaded> kernel;
  };
  std::vector<Entry> entries;
  auto const image = std::make_shared<std::string const>(read_cubin(cubin.path));
  for (size_t i = 0; i < cubin.features.size(); ++i) {
    auto const loaded = std::make_shared<Loaded>();
    loaded->image = image;
    loaded->symbol = cubin.symbols[i];
    entries.push_back({cubin.features[i], loaded});
  }
  auto add = [&](ForwardFeatures const& features, std::shared_ptr<Loaded> const& kernel) {
    auto const same = [&](Entry const& entry) { return entry.features == features; };
    if (std::none_of(entries.begin(), entries.end(), same)) {
      entries.push_back({features, kernel});
    }
  };
  if (before && before->cubins) {
    CubinRow const& other = *before->cubins;
    for (size_t i = 0; i < other.features_.size(); ++i) {
      add(other.features_[i], other.kernels_[i]);
    }
    before_ = other.before_;
  } else if (before) {
    for (ForwardFeatures const& features : before->row->features) {
      add(features, nullptr);
    }
  }
  std::stable_sort(entries.begin(), entries.end(), [](Entry const& a, Entry const& b) {
    return count(a.features) < count(b.features);
  });
  for (Entry const& entry : entries) {
    features_.push_back(entry.features);
    kernels_.push_back(entry.kernel);
  }
  row_ = {.config = cubin.config,
          .short_form = short_form_.c_str(),
          .n_threads = cubin.n_threads,
          .smem_bytes = cubin.smem_bytes,
          .features = {features_.data(), features_.size()},
          .ctas_per_sm = {&ctas_, 1},
          .launch = nullptr,
          .refusal = before_.row ? before_.row->refusal : nullptr,
          .sm_archs = sm_arch_.c_str(),
          .ptx_arch = 0,
          .rank = cubin.rank,
          .packs_heads = false,
          .max_cluster = 1};
  std::visit(
      [&](auto const& config) {
        row_.dtype = config.dtype;
        row_.d_head = config.d_head;
        row_.B_r = config.B_r;
        row_.B_c = config.B_c;
      },
      cubin.config);
}

int CubinRow::launch(ForwardParams const& params, void* stream) const {
  ForwardFeatures const needed = features_needed(params, row_.d_head);
  auto const covers = [&](ForwardFeatures const& built) { return built.covers(needed); };
  // There is one: else selection has refused the problem.
  auto const found = std::find_if(features_.begin(), features_.end(), covers);
  std::shared_ptr<Loaded> const& loaded = kernels_[found - features_.begin()];
  if (!loaded) {
    return before_.row->launch(params, stream);
  }
  std::unique_lock lock(loaded->mutex);
  if (!loaded->kernel) {
    int const error =
        library_->load_cubin(loaded->image->data(), loaded->symbol.c_str(), &loaded->kernel);
    if (error != 0) {
      return error;
    }
  }
  lock.unlock();
  return library_->launch_cubin(loaded->kernel, row_, params, stream);
}

}  // namespace pyflash
