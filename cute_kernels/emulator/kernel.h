// From a config to its kernels for the emulator. Included by the emitted translation units only.
#pragma once

#include "cute_kernels/emulator/atoms.h"
#include "cute_kernels/emulator/machine.h"
#include "cute_kernels/sm80/forward_kernel.cuh"
#include "cute_kernels/sm80/traits.h"

namespace pyflash::emulator {

template <FlashForwardKernelConfig kConfig>
void run_thread(ForwardParams const& params) {
  using Traits = sm80::KernelTraits<kConfig>;
  switch (variant_of(params, kConfig.d_head)) {
    case Variant::Plain:
      return sm80::forward_cta<Traits, Variant::Plain>(params);
    case Variant::Causal:
      return sm80::forward_cta<Traits, Variant::Causal>(params);
    case Variant::General:
      return sm80::forward_cta<Traits, Variant::General>(params);
    case Variant::Capped:
      return sm80::forward_cta<Traits, Variant::Capped>(params);
  }
}

template <FlashForwardKernelConfig kConfig>
EmulatedKernel const* forward_kernel() {
  using Traits = sm80::KernelTraits<kConfig>;
  static constexpr EmulatedKernel kernel{.n_threads = Traits::kNThreads,
                                         .smem_bytes = sizeof(typename Traits::SharedStorage),
                                         .n_ctas = sm80::n_ctas<Traits>,
                                         .attach = [](Machine* m) { machine = m; },
                                         .run_thread = run_thread<kConfig>};
  return &kernel;
}

}  // namespace pyflash::emulator
