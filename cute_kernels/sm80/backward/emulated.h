// From a config to its kernels for the emulator. Included by the emitted translation units only.
#pragma once

#include <memory>

#include "cute_kernels/emulator/atoms.h"
#include "cute_kernels/emulator/backward_phases.h"
#include "cute_kernels/emulator/machine.h"
#include "cute_kernels/emulator/variant.h"
#include "cute_kernels/sm80/backward/backward_kernel.cuh"
#include "cute_kernels/sm80/backward/grid.h"
#include "cute_kernels/sm80/backward/host.h"
#include "cute_kernels/sm80/backward/listed.h"
#include "cute_kernels/sm80/backward/postprocess.cuh"

namespace pyflash::emulator {

template <FlashBackwardKernelConfig kConfig, class Variant, BackwardFeatures... kBuilt>
void run_sm80_backward(void const* params) {
  auto const& problem = *static_cast<variant::ParamsOf<BackwardParams, Variant> const*>(params);
  bool const covered = run_first_that_covers<BackwardFeatures, kBuilt...>(
      features_needed(problem, kConfig.d_head), [&](auto features) {
        sm80::backward::backward_cta<sm80::backward::KernelTraits<kConfig>, features.value,
                                     Variant>(problem);
      });
  if (!covered) {
    machine->fail("no built combination of features covers the problem");
  }
}

template <FlashBackwardKernelConfig kConfig, class Variant>
Launch launch_sm80_backward(BackwardParams const& params, variant::Arguments const& captured) {
  auto launch = std::make_shared<VariantLaunch<BackwardParams, Variant>>(params);
  launch->capture(captured, params, kConfig.B_r, kConfig.B_c, takes_order(kConfig, params));
  std::shared_ptr<void const> const given(launch, &launch->params);
  return {.n_ctas = sm80::backward::n_ctas(kConfig, params), .params = given, .error = nullptr};
}

template <FlashBackwardKernelConfig kConfig, class Variant, BackwardFeatures... kBuilt>
EmulatedKernel const* emulated_kernel_of() {
  using Traits = sm80::backward::KernelTraits<kConfig>;
  using Element = typename Traits::Element;
  constexpr int kColumns = kConfig.d_head;
  static constexpr EmulatedKernel const* kBefore =
      &kQueriesKernel<backward::kPreprocessThreads, 1024,
                      backward::preprocess_cta<Element, kColumns>>;
  static constexpr EmulatedKernel const* kAfter =
      &kQueriesKernel<sm80::backward::kPostprocessThreads, 1024,
                      sm80::backward::postprocess_cta<Element, kColumns>>;
  static EmulatedBackward backward{
      .shape = tile_shape(kConfig),
      .kernels = {kBefore, nullptr, kAfter},
      .refusal =
          [](BackwardParams const& params) { return sm80::backward::refusal(kConfig, params); },
      .launch = [](int phase, BackwardParams const& params, variant::Arguments const& captured,
                   int) -> Launch {
        if (phase == 1) {
          return launch_sm80_backward<kConfig, Variant>(params, captured);
        }
        return {.n_ctas = params.n_key_pieces() + pyflash::backward::n_query_pieces(params),
                .params = std::make_shared<BackwardParams>(params)};
      }};
  static EmulatedKernel const kernel{.n_threads = Traits::kNThreads,
                                     .smem_bytes = sizeof(typename Traits::SharedStorage),
                                     .access_bytes = 4,
                                     .starts_early = false,
                                     .watches_registers = false,
                                     .registers = 0,
                                     .cluster = nullptr,
                                     .tiles = {},
                                     .rings = {},
                                     .refusal = nullptr,
                                     .launch = nullptr,
                                     .backward = &backward,
                                     .attach = [](Machine* m) { machine = m; },
                                     .run_thread = run_sm80_backward<kConfig, Variant, kBuilt...>,
                                     .role = [](int) { return ""; },
                                     .has_variant = kIsVariant<Variant>};
  backward.kernels[1] = &kernel;
  return &kernel;
}

template <FlashBackwardKernelConfig kConfig, BackwardFeatures... kBuilt>
EmulatedKernel const* emulated_kernel() {
  return emulated_kernel_of<kConfig, variant::NoVariant, kBuilt...>();
}

}  // namespace pyflash::emulator
