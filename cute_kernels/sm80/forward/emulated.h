// From a config to its kernels for the emulator. Included by the emitted translation units only.
#pragma once

#include <memory>

#include "cute_kernels/emulator/atoms.h"
#include "cute_kernels/emulator/machine.h"
#include "cute_kernels/sm80/forward/forward_kernel.cuh"
#include "cute_kernels/sm80/forward/grid.h"
#include "cute_kernels/sm80/forward/traits.h"

namespace pyflash::emulator {

template <FlashForwardKernelConfig kConfig, ForwardFeatures... kBuilt>
void run_thread(void const* params) {
  auto const& problem = *static_cast<ForwardParams const*>(params);
  bool const covered = run_first_that_covers<ForwardFeatures, kBuilt...>(
      features_needed(problem, kConfig.d_head), [&](auto features) {
        sm80::forward_cta<sm80::KernelTraits<kConfig>, features.value>(problem);
      });
  if (!covered) {
    machine->fail("no built combination of features covers the problem");
  }
}

template <class Traits>
Launch launch_sm80(ForwardParams const& params, int) {
  return {.n_ctas = sm80::n_ctas(params.q_sequences(), Traits::kBlockM, params.num_splits,
                                 params.heads, params.batch),
          .params = std::make_shared<ForwardParams>(params),
          .error = nullptr};
}

template <FlashForwardKernelConfig kConfig, ForwardFeatures... kBuilt>
EmulatedKernel const* emulated_kernel() {
  using Traits = sm80::KernelTraits<kConfig>;
  static constexpr EmulatedKernel kernel{.n_threads = Traits::kNThreads,
                                         .smem_bytes = sizeof(typename Traits::SharedStorage),
                                         .access_bytes = 4,
                                         .starts_early = false,
                                         .watches_registers = false,
                                         .registers = 0,
                                         .cluster = nullptr,
                                         .tiles = {},
                                         .rings = {},
                                         .refusal = nullptr,
                                         .launch = launch_sm80<Traits>,
                                         .attach = [](Machine* m) { machine = m; },
                                         .run_thread = run_thread<kConfig, kBuilt...>,
                                         .role = [](int) { return ""; }};
  return &kernel;
}

}  // namespace pyflash::emulator
