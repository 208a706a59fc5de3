// From a config to its kernels for the emulator. Included by the emitted translation units only.
#pragma once

#include "cute_kernels/emulator/atoms.h"
#include "cute_kernels/emulator/machine.h"
#include "cute_kernels/sm80/forward_kernel.cuh"
#include "cute_kernels/sm80/grid.h"
#include "cute_kernels/sm80/traits.h"

namespace pyflash::emulator {

template <FlashForwardKernelConfig kConfig, ForwardFeatures... kBuilt>
void run_thread(ForwardParams const& params) {
  bool const covered =
      run_first_that_covers<kBuilt...>(features_needed(params, kConfig.d_head), [&](auto features) {
        sm80::forward_cta<sm80::KernelTraits<kConfig>, features.value>(params);
      });
  if (!covered) {
    machine->fail("no built combination of features covers the problem");
  }
}

template <class Traits>
int64_t n_ctas(ForwardParams const& params) {
  return sm80::n_ctas(params, Traits::kBlockM);
}

template <FlashForwardKernelConfig kConfig, ForwardFeatures... kBuilt>
EmulatedKernel const* forward_kernel() {
  using Traits = sm80::KernelTraits<kConfig>;
  static constexpr EmulatedKernel kernel{.n_threads = Traits::kNThreads,
                                         .smem_bytes = sizeof(typename Traits::SharedStorage),
                                         .n_ctas = n_ctas<Traits>,
                                         .attach = [](Machine* m) { machine = m; },
                                         .run_thread = run_thread<kConfig, kBuilt...>};
  return &kernel;
}

}  // namespace pyflash::emulator
