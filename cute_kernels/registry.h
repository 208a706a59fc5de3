// The config map: config of any family -> launcher, architectures, features, resources.
//
// Kernels are compiled into *kernel libraries*: shared objects that know CUDA but not torch, each with one exported
// function, pyflash_kernel_library(), that returns its rows. The op library knows torch but not CUDA; it loads kernel
// libraries with dlopen and keeps their rows in one ordered map. So the op library is built once for every torch, and
// more configs can be compiled and added while a process runs.
#pragma once

#include "cute_kernels/config.h"
#include "cute_kernels/ctas_per_sm.h"
#include "cute_kernels/features.h"
#include "cute_kernels/params.h"

namespace pyflash {

// Bumped whenever a struct in this file, features.h or params.h changes its layout. Configs have a digest of their own.
inline constexpr int kKernelLibraryAbi = 10;

struct ConfigMapRow;

// Why a row's kernel that has the features cannot run a problem all the same; nullptr: it can.
using ProblemRefusal = char const* (*)(ConfigMapRow const& row, ForwardParams const& params);

struct ConfigMapRow {
  AnyConfig config;
  char const* short_form;
  DType dtype;
  int d_head;                      // largest of a problem
  int B_r;                         // Q rows per CTA
  int B_c;                         // K/V rows per block
  int n_threads;                   // per CTA
  int smem_bytes;                  // per CTA, dynamic
  Span<ForwardFeatures> features;  // the combinations that are built, in the order of dispatch
  Span<void const*> kernels;       // of each combination, for KernelLibrary::launch
  Span<ArchCtas> ctas_per_sm;      // ascending
  char const*
      sm_archs;  // targets of the machine code inside, comma separated, ascending: "80,90", "90a"
  int ptx_arch;  // PTX inside, for devices newer than all of sm_archs: 90; 0 = none
  int rank;      // the selection rule's order of preference: smaller first

  // These follow from the config: KernelLibrary::describe.
  ProblemRefusal refusal = nullptr;  // nullptr: its kernels run any problem
  bool packs_heads = false;          // the query heads of a head of K and V are rows of one tile
  int max_cluster = 1;               // up to so many splits of a tile may be a cluster of CTAs
};

struct KernelLibrary {
  int abi;                     // kKernelLibraryAbi
  char const* configs_digest;  // kConfigsDigest, of the config structs
  Span<ConfigMapRow> rows;
  // Of the current device: compute capability as major * 10 + minor, number of multiprocessors; returns a cudaError_t.
  int (*device_properties)(int* sm_arch, int* n_sms);
  char const* (*error_string)(int error);
  // Combines the partial results of splits that are no cluster into o and lse, after the kernel that wrote them, on the same
  // stream.
  int (*merge_splits)(ForwardParams const& params, DType dtype, void* stream);
  // Launches one forward pass with a kernel of the row on `stream` (a cudaStream_t) of the current device, without
  // synchronising; returns a cudaError_t.
  int (*launch)(void const* kernel, ConfigMapRow const& row, ForwardParams const& params,
                void* stream);
  // For kernels that were compiled as device code alone. describe: sets what of a row follows from its config. load_cubin:
  // finds the kernel with the mangled name `symbol` in a cubin, of which it keeps no copy; returns a cudaError_t.
  void (*describe)(ConfigMapRow& row);
  int (*load_cubin)(void const* image, char const* symbol, void const** kernel);
};

}  // namespace pyflash

extern "C" __attribute__((visibility("default"))) pyflash::KernelLibrary const*
pyflash_kernel_library();
