// The config map: config of any family -> architectures, features, resources, kernels.
//
// Kernels are compiled into *kernel libraries*: shared objects that know CUDA but not torch, each with an exported
// function, pyflash_kernel_library(), that returns its rows, and those of append.h and slots.h. The op library knows torch but not CUDA; it loads kernel
// libraries with dlopen and keeps their rows in an ordered map for each op. So the op library is built once for every
// torch, and more configs can be compiled and added while a process runs.
#pragma once

#include <tuple>

#include "cute_kernels/config.h"
#include "cute_kernels/kernel_resources.h"
#include "cute_kernels/lasting_memory.h"
#include "cute_kernels/op.h"
#include "cute_kernels/ops.h"

namespace pyflash {

// Bumped whenever a struct in this file, op.h, features.h, params.h or the header of an op changes its layout, or what a member
// means. Configs, and which ops there are, have a digest of their own.
inline constexpr int kKernelLibraryAbi = 37;

// What rows of every op have.
struct RowOfAnyOp {
  char const* short_form;
  DType dtype;
  int d_head;                  // largest of a problem
  int n_threads;               // per CTA
  int smem_bytes;              // per CTA, dynamic
  Span<void const*> kernels;   // of each combination of features, for OpKernels::run
  Span<ArchCtas> ctas_per_sm;  // ascending
  char const*
      sm_archs;  // targets of the machine code inside, comma separated, ascending: "80,90", "90a"
  int ptx_arch;  // PTX inside, for devices newer than all of sm_archs: 90; 0 = none
  int rank;      // the selection rule's order of preference: smaller first
};

template <class Op>
struct ConfigMapRow;

// Why a row's kernel that has the features cannot run a problem all the same; nullptr: it can.
template <class Op>
using ProblemRefusal = char const* (*)(ConfigMapRow<Op> const& row,
                                       typename Op::Params const& params);

template <class Op>
struct ConfigMapRow : RowOfAnyOp {
  ConfigOf<Op> config;
  Span<typename Op::Features>
      features;  // the combinations that are built, in the order of dispatch

  // These follow from the config: OpKernels::describe.
  typename Op::Shape shape{};
  ProblemRefusal<Op> refusal = nullptr;  // nullptr: its kernels run any problem
};

// What a kernel library has of an op.
template <class Op>
struct OpKernels {
  Span<ConfigMapRow<Op>> rows;
  // Runs the op's phases on `stream` (a cudaStream_t) of the current device, without synchronising, the config's own with
  // this kernel of the row; returns a cudaError_t. NOTE: a kernel is launched by the library that has it, or that loaded it,
  // whichever library made the row: each has a CUDA runtime of its own.
  int (*run)(void const* kernel, ConfigMapRow<Op> const& row, typename Op::Params const& params,
             void* stream);
  // For kernels that were compiled as device code alone: sets what of a row follows from its config.
  void (*describe)(ConfigMapRow<Op>& row);
  // Runs the phases before the config's own alone, as `run` does.
  int (*prepare)(ConfigMapRow<Op> const& row, typename Op::Params const& params, void* stream);
};

// std::tuple<T<Op>...> of every op.
template <template <class> class T, class Ops = AllOps>
struct TupleOfOps;
template <template <class> class T, class... Ops>
struct TupleOfOps<T, OpList<Ops...>> {
  using type = std::tuple<T<Ops>...>;
};
template <template <class> class T>
using OfEachOp = typename TupleOfOps<T>::type;

struct KernelLibrary {
  int abi;                     // kKernelLibraryAbi
  char const* configs_digest;  // kConfigsDigest, of the config structs
  OfEachOp<OpKernels> ops;
  // The current device: compute capability as major * 10 + minor, number of multiprocessors; returns a cudaError_t.
  int (*device_properties)(int* sm_arch, int* n_sms);
  char const* (*error_string)(int error);
  // Finds the kernel with the mangled name `symbol` in a cubin, of which it keeps no copy; returns a cudaError_t.
  int (*load_cubin)(void const* image, char const* symbol, void const** kernel);
  LastingMemoryCalls lasting_memory;

  template <class Op>
  OpKernels<Op> const& of() const {
    return std::get<OpKernels<Op>>(ops);
  }
};

}  // namespace pyflash

extern "C" __attribute__((visibility("default"))) pyflash::KernelLibrary const*
pyflash_kernel_library();
