// Kernels that were compiled as device code alone, a cubin of one config for one architecture, and the row of the config map
// that they make.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cute_kernels/registry.h"

namespace pyflash {

// What is known of a cubin.
struct Cubin {
  std::string path;
  AnyConfig config;
  std::vector<ForwardFeatures> features;
  std::vector<std::string> symbols;  // the kernels' mangled names, one for each of `features`
  std::string sm_arch;               // "90", "90a"
  int n_threads;                     // per CTA
  int smem_bytes;                    // per CTA, dynamic
  int ctas_per_sm;                   // by the resource model
  int rank;
};

// The bytes of a file. Refuses one that is missing or no cubin.
std::string read_cubin(std::string const& path);

class CubinRow;

// A row of the config map and the library that launches its kernels. All live as long as the process: kernel libraries are never
// unloaded, because captured CUDA graphs may hold their kernels.
struct Kernel {
  ConfigMapRow const* row;
  KernelLibrary const* library;
  CubinRow const* cubins = nullptr;  // of which the row is; nullptr: all of it is in the library

  // With the first combination of features that covers the problem. Returns a cudaError_t.
  int launch(ForwardParams const& params, void* stream) const;
};

// The row of a config some of whose kernels are in cubins. The others, if any, are those that the config had before.
class CubinRow {
 public:
  // library: loads and launches the cubin's kernels. before: what the config map has for the config, or nullptr.
  CubinRow(Cubin const& cubin, KernelLibrary const& library, Kernel const* before);
  CubinRow(CubinRow const&) = delete;  // kernel() points into it

  Kernel const& kernel() const { return kernel_; }

  // The kernel of the row's i-th combination of features.
  int launch(size_t i, ForwardParams const& params, void* stream) const;

 private:
  // A kernel, and the library that launches it: each has a CUDA runtime of its own.
  struct Entry {
    KernelLibrary const* library;
    // Of a cubin, loaded when it is first launched, on a machine that may have no GPU until then.
    void const* kernel;
    std::shared_ptr<std::string const> image{};
    std::string symbol{};
    std::mutex mutex{};
  };

  // In the order of dispatch. Of the same features, the one that is there stays.
  void add(ForwardFeatures const& features, std::shared_ptr<Entry> const& entry);

  std::vector<ForwardFeatures> features_;
  std::vector<std::shared_ptr<Entry>> entries_;

  std::string short_form_;
  std::string sm_arch_;
  ArchCtas ctas_;
  ConfigMapRow row_;
  Kernel kernel_;
};

}  // namespace pyflash
