// The config map: FlashForwardKernelConfig -> launcher, architectures, resources.
//
// Kernels are compiled into *kernel libraries*: shared objects that know CUDA but not torch, each with one exported
// function, pyflash_kernel_library(), that returns its rows. The op library knows torch but not CUDA; it loads kernel
// libraries with dlopen and keeps their rows in one ordered map. So the op library is built once for every torch, and
// more configs can be compiled and added while a process runs.
#pragma once

#include "cute_kernels/config.h"
#include "cute_kernels/params.h"

namespace pyflash {

// Bumped whenever a struct in this file, config.h or params.h changes its layout.
inline constexpr int kKernelLibraryAbi = 3;

// Launches one forward pass on `stream` (a cudaStream_t) of the current device, without synchronising; returns a
// cudaError_t.
using ForwardLauncher = int (*)(ForwardParams const& params, void* stream);

// CTAs that fit on a multiprocessor by the resource model, per architecture; 0 where the config is not legal.
struct CtasPerSm {
  int sm80 = 0;
  int sm86 = 0;
  int sm89 = 0;
  int sm90 = 0;
  int sm100 = 0;
  int sm120 = 0;
};

struct ConfigMapRow {
  FlashForwardKernelConfig config;
  char const* short_form;
  ForwardLauncher launch;
  char const* sm_archs;  // machine code inside, comma separated, ascending: "80,90"
  int ptx_arch;          // PTX inside, for devices newer than all of sm_archs: 90; 0 = none
  int n_threads;         // per CTA
  int smem_bytes;        // per CTA, dynamic
  CtasPerSm ctas_per_sm;
  int rank;  // the selection rule's order of preference: smaller first
};

struct KernelLibrary {
  int abi;  // kKernelLibraryAbi
  int n_rows;
  ConfigMapRow const* rows;
  // Of the current device: compute capability as major * 10 + minor, number of multiprocessors; returns a cudaError_t.
  int (*device_properties)(int* sm_arch, int* n_sms);
  char const* (*error_string)(int error);
  // Merges the partial results of num_splits > 1 into o and lse, after the kernel that wrote them, on the same stream.
  int (*merge_splits)(ForwardParams const& params, DType dtype, void* stream);
};

// The row of one config: the launcher and what the traits know of it. Defined in sm80/launch.h, instantiated once in the
// emitted translation unit of that config.
template <FlashForwardKernelConfig kConfig>
ConfigMapRow forward_row(char const* short_form, char const* sm_archs, int ptx_arch, int rank);

}  // namespace pyflash

extern "C" __attribute__((visibility("default"))) pyflash::KernelLibrary const*
pyflash_kernel_library();
