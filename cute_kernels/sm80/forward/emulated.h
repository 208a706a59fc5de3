// From a config to its kernels for the emulator. Included by the emitted translation units only.
#pragma once

#include <memory>
#include <type_traits>

#include "cute_kernels/emulator/atoms.h"
#include "cute_kernels/emulator/machine.h"
#include "cute_kernels/emulator/variant.h"
#include "cute_kernels/sm80/forward/forward_kernel.cuh"
#include "cute_kernels/sm80/forward/fp8.h"
#include "cute_kernels/sm80/forward/grid.h"
#include "cute_kernels/sm80/forward/host.h"
#include "cute_kernels/sm80/forward/listed.h"
#include "cute_kernels/sm80/forward/traits.h"

namespace pyflash::emulator {

template <FlashForwardKernelConfig kConfig, class Variant, ForwardFeatures... kBuilt>
void run_thread(void const* params) {
  auto const& problem =
      *static_cast<variant::ParamsOf<ListedForwardParams, Variant> const*>(params);
  bool const covered = run_first_that_covers<ForwardFeatures, kBuilt...>(
      features_needed(problem, kConfig.d_head), [&](auto features) {
        if constexpr (features.value.fp8_kv) {
          sm80::fp8_cta<sm80::KernelTraits<kConfig>, features.value>(problem);
        } else {
          sm80::forward_cta<sm80::KernelTraits<kConfig>, features.value, Variant>(problem);
        }
      });
  if (!covered) {
    machine->fail("no built combination of features covers the problem");
  }
}

template <FlashForwardKernelConfig kConfig, class Variant>
Launch launch_sm80(ListedForwardParams const& params, variant::Arguments const& captured, int) {
  auto launch = std::make_shared<VariantLaunch<ListedForwardParams, Variant>>(params);
  launch->capture(captured, listed_problem(kConfig, params), takes_order(kConfig, params));
  std::shared_ptr<void const> const given(launch, &launch->params);
  return {.n_ctas = sm80::n_ctas(params, kConfig.B_r), .params = given, .error = nullptr};
}

template <FlashForwardKernelConfig kConfig, class Variant, ForwardFeatures... kBuilt>
EmulatedKernel const* emulated_kernel_of() {
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
                                         .launch = launch_sm80<kConfig, Variant>,
                                         .attach = [](Machine* m) { machine = m; },
                                         .run_thread = run_thread<kConfig, Variant, kBuilt...>,
                                         .role = [](int) { return ""; },
                                         .has_variant = kIsVariant<Variant>,
                                         .shape = tile_shape(kConfig),
                                         .features = kBuiltFeatures<kBuilt...>};
  return &kernel;
}

template <FlashForwardKernelConfig kConfig, ForwardFeatures... kBuilt>
EmulatedKernel const* emulated_kernel() {
  return emulated_kernel_of<kConfig, variant::NoVariant, kBuilt...>();
}

}  // namespace pyflash::emulator
