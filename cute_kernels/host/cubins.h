// Kernels that were compiled as device code alone, a cubin of one config for one architecture, and the row of the config map
// that they make.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cute_kernels/host/short_form.h"
#include "cute_kernels/registry.h"

namespace pyflash {

// The description of a cubin.
template <class Op>
struct Cubin {
  std::string path;
  ConfigOf<Op> config;
  std::vector<typename Op::Features> features;
  std::vector<std::string> symbols;  // the kernels' mangled names, one for each of `features`
  std::string sm_arch;               // "90", "90a"
  int n_threads;                     // per CTA
  int smem_bytes;                    // per CTA, dynamic
  int ctas_per_sm;                   // by the resource model
  int rank;
};

// The bytes of a file. Refuses one that is missing or no cubin.
std::string read_cubin(std::string const& path);

template <class Op>
class CubinRow;

// A row of the config map and the library that launches its kernels. All live as long as the process: kernel libraries are never
// unloaded, because captured CUDA graphs may hold their kernels.
template <class Op>
struct Kernel {
  ConfigMapRow<Op> const* row;
  KernelLibrary const* library;
  CubinRow<Op> const* cubins =
      nullptr;  // of which the row is; nullptr: all of it is in the library

  // Why it cannot run a problem of features that it covers; nullptr: it can.
  char const* refuses(typename Op::Params const& params) const {
    return row->refusal ? row->refusal(*row, params) : nullptr;
  }

  // Runs the op's phases, with the first combination of features that covers the problem. Returns a cudaError_t.
  int run(typename Op::Params const& params, void* stream) const;
};

// The row of a config some of whose kernels are in cubins. The others, if any, are those that the config had before.
template <class Op>
class CubinRow {
 public:
  using Features = typename Op::Features;

  // library: loads and launches the cubin's kernels. before: what the config map has for the config, or nullptr.
  CubinRow(Cubin<Op> const& cubin, KernelLibrary const& library, Kernel<Op> const* before);
  CubinRow(CubinRow const&) = delete;  // kernel() points into it

  Kernel<Op> const& kernel() const { return kernel_; }

  // With the kernel of the row's i-th combination of features.
  int run(size_t i, typename Op::Params const& params, void* stream) const;

 private:
  // A kernel, and the library that launches it: each has a CUDA runtime of its own.
  struct Entry {
    KernelLibrary const* library;
    // The kernel of a cubin, loaded at its first launch, because there may be no GPU before.
    void const* kernel;
    std::shared_ptr<std::string const> image{};
    std::string symbol{};
    std::mutex mutex{};
  };

  // In the order of dispatch. Of the same features, the one that is there stays.
  void add(Features const& features, std::shared_ptr<Entry> const& entry);

  std::vector<Features> features_;
  std::vector<std::shared_ptr<Entry>> entries_;

  std::string short_form_;
  std::string sm_arch_;
  ArchCtas ctas_;
  ConfigMapRow<Op> row_;
  Kernel<Op> kernel_;
};

template <class Op>
int Kernel<Op>::run(typename Op::Params const& params, void* stream) const {
  typename Op::Features const needed = features_needed(params, row->d_head);
  // There is one: else selection has refused the problem.
  auto const found = std::find_if(row->features.begin(), row->features.end(),
                                  [&](auto const& built) { return covers(built, needed); });
  auto const i = static_cast<size_t>(found - row->features.begin());
  return cubins ? cubins->run(i, params, stream)
                : library->of<Op>().run(row->kernels.data[i], *row, params, stream);
}

template <class Op>
CubinRow<Op>::CubinRow(Cubin<Op> const& cubin, KernelLibrary const& library,
                       Kernel<Op> const* before)
    : short_form_(short_form(any_config(cubin.config))),
      sm_arch_(cubin.sm_arch),
      ctas_{std::atoi(cubin.sm_arch.c_str()), cubin.ctas_per_sm} {
  auto const image = std::make_shared<std::string const>(read_cubin(cubin.path));
  for (size_t i = 0; i < cubin.features.size(); ++i) {
    add(cubin.features[i],
        std::shared_ptr<Entry>(new Entry{&library, nullptr, image, cubin.symbols[i]}));
  }
  for (size_t i = 0; before && i < before->row->features.size; ++i) {
    add(before->row->features.data[i],
        before->cubins
            ? before->cubins->entries_[i]
            : std::shared_ptr<Entry>(new Entry{before->library, before->row->kernels.data[i]}));
  }
  auto const [dtype, d_head] =
      std::visit([](auto const& c) { return std::pair(c.dtype, c.d_head); }, cubin.config);
  row_ = {{.short_form = short_form_.c_str(),
           .dtype = dtype,
           .d_head = d_head,
           .n_threads = cubin.n_threads,
           // What the kernel that takes most needs: those with some features need more.
           .smem_bytes = std::max(cubin.smem_bytes, before ? before->row->smem_bytes : 0),
           .kernels = {},
           .ctas_per_sm = {&ctas_, 1},
           .sm_archs = sm_arch_.c_str(),
           .ptx_arch = 0,
           .rank = cubin.rank},
          cubin.config,
          {features_.data(), features_.size()}};
  library.of<Op>().describe(row_);
  kernel_ = {&row_, &library, this};
}

template <class Op>
void CubinRow<Op>::add(Features const& features, std::shared_ptr<Entry> const& entry) {
  if (std::find(features_.begin(), features_.end(), features) != features_.end()) {
    return;
  }
  auto const more = [&](Features const& other) {
    return count_features(other) > count_features(features);
  };
  auto const at = std::find_if(features_.begin(), features_.end(), more);
  entries_.insert(entries_.begin() + (at - features_.begin()), entry);
  features_.insert(at, features);
}

template <class Op>
int CubinRow<Op>::run(size_t i, typename Op::Params const& params, void* stream) const {
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
  return entry.library->template of<Op>().run(entry.kernel, row_, params, stream);
}

}  // namespace pyflash
