#include "cute_kernels/host/cubins.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string_view>

#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/short_form.h"

namespace pyflash {

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
  ForwardFeatures const needed = features_needed(params, row->d_head);
  // There is one: else selection has refused the problem.
  auto const found =
      std::find_if(row->features.begin(), row->features.end(),
                   [&](ForwardFeatures const& built) { return built.covers(needed); });
  auto const i = static_cast<size_t>(found - row->features.begin());
  return cubins ? cubins->launch(i, params, stream)
                : library->launch(row->kernels.data[i], *row, params, stream);
}

CubinRow::CubinRow(Cubin const& cubin, KernelLibrary const& library, Kernel const* before)
    : short_form_(short_form(cubin.config)),
      sm_arch_(cubin.sm_arch),
      ctas_{std::atoi(cubin.sm_arch.c_str()), cubin.ctas_per_sm} {
  auto const image = std::make_shared<std::string const>(read_cubin(cubin.path));
  for (size_t i = 0; i < cubin.features.size(); ++i) {
    add(cubin.features[i],
        std::shared_ptr<Entry>(new Entry{&library, nullptr, image, cubin.symbols[i]}));
  }
  if (before && before->cubins) {
    for (size_t i = 0; i < before->row->features.size; ++i) {
      add(before->row->features.data[i], before->cubins->entries_[i]);
    }
  } else if (before) {
    for (size_t i = 0; i < before->row->features.size; ++i) {
      add(before->row->features.data[i],
          std::shared_ptr<Entry>(new Entry{before->library, before->row->kernels.data[i]}));
    }
  }
  row_ = {.config = cubin.config,
          .short_form = short_form_.c_str(),
          .n_threads = cubin.n_threads,
          .smem_bytes = cubin.smem_bytes,
          .features = {features_.data(), features_.size()},
          .ctas_per_sm = {&ctas_, 1},
          .sm_archs = sm_arch_.c_str(),
          .ptx_arch = 0,
          .rank = cubin.rank};
  std::visit(
      [&](auto const& config) {
        row_.dtype = config.dtype;
        row_.d_head = config.d_head;
        row_.B_r = config.B_r;
        row_.B_c = config.B_c;
      },
      cubin.config);
  library.describe(row_);
  kernel_ = {&row_, &library, this};
}

void CubinRow::add(ForwardFeatures const& features, std::shared_ptr<Entry> const& entry) {
  if (std::find(features_.begin(), features_.end(), features) != features_.end()) {
    return;
  }
  auto const more = [&](ForwardFeatures const& other) { return other.count() > features.count(); };
  auto const at = std::find_if(features_.begin(), features_.end(), more);
  entries_.insert(entries_.begin() + (at - features_.begin()), entry);
  features_.insert(at, features);
}

int CubinRow::launch(size_t i, ForwardParams const& params, void* stream) const {
  Entry& entry = *entries_[i];
  std::unique_lock lock(entry.mutex);
  if (!entry.kernel) {
    int const error =
        entry.library->load_cubin(entry.image->data(), entry.symbol.c_str(), &entry.kernel);
    if (error != 0) {
      return error;
    }
  }
  lock.unlock();
  return entry.library->launch(entry.kernel, row_, params, stream);
}

}  // namespace pyflash
