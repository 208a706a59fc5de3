// From a config to a kernel for the emulator. Included by the emitted translation units only.
#pragma once

#include "cute_kernels/emulator/atoms.h"
#include "cute_kernels/emulator/machine.h"
#include "cute_kernels/sm80/forward_kernel.cuh"
#include "cute_kernels/sm80/traits.h"

namespace pyflash::emulator {

template <FlashForwardKernelConfig kConfig>
EmulatedKernel const* forward_kernel() {
  using Traits = sm80::KernelTraits<kConfig>;
  static constexpr EmulatedKernel kernel{.n_threads = Traits::kNThreads,
                                         .smem_bytes = sizeof(typename Traits::SharedStorage),
                                         .n_ctas = sm80::n_ctas<Traits>,
                                         .attach = [](Machine* m) { machine = m; },
                                         .run_thread = sm80::forward_cta<Traits>};
  return &kernel;
}

}  // namespace pyflash::emulator
