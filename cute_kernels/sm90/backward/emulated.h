// From a config to its kernels for the emulator. Included by the emitted translation units only.
#pragma once

// NOTE: first, because it decides what CuTe's atoms call.
#include "cute_kernels/emulator/atoms_sm90.h"

#include <cstddef>
#include <iterator>
#include <memory>

#include "cute_kernels/emulator/atoms.h"
#include "cute_kernels/emulator/backward_phases.h"
#include "cute_kernels/emulator/machine.h"
#include "cute_kernels/emulator/tensor_map.h"
#include "cute_kernels/emulator/variant.h"
#include "cute_kernels/sm90/backward/backward_kernel.cuh"
#include "cute_kernels/sm90/backward/host.h"
#include "cute_kernels/sm90/backward/listed.h"
#include "cute_kernels/sm90/backward/plan.h"
#include "cute_kernels/sm90/backward/postprocess.cuh"

namespace pyflash::emulator {

template <class Variant>
struct Sm90BackwardLaunch : VariantLaunch<sm90::backward::KernelParams, Variant> {
  using Params = variant::ParamsOf<sm90::backward::KernelParams, Variant>;
  void (*backward)(Params const& params);  // of the features that it needs
};

template <FlashBackwardSm90Config kConfig, class Variant, BackwardFeatures... kBuilt>
Launch launch_sm90_backward(BackwardParams const& params, variant::Arguments const& captured,
                            int n_resident) {
  using Traits = sm90::backward::KernelTraits<kConfig>;
  auto launch = std::make_shared<Sm90BackwardLaunch<Variant>>();
  bool const covered = run_first_that_covers<BackwardFeatures, kBuilt...>(
      features_needed(params, kConfig.d_head), [&](auto features) {
        launch->backward = sm90::backward::backward_cta<Traits, features.value, Variant>;
      });
  if (!covered) {
    return {.error = "no built combination of features covers the problem"};
  }
  sm90::backward::Plan plan;
  if (sm90::backward::make_plan(plan, kConfig, params, n_resident, encode_tensor_map) !=
      cudaSuccess) {
    return {.error = "the driver would encode no tensor map of q, k, v or grad_out"};
  }
  static_cast<sm90::backward::KernelParams&>(launch->params) = plan.params;
  launch->capture(captured, params, kConfig.B_r, kConfig.B_c, takes_order(kConfig, params));
  return {.n_ctas = plan.n_ctas, .cluster = plan.params.cluster, .params = launch};
}

inline char const* role_of_backward_warp(int warp) {
  constexpr char const* kProducers[] = {"K, Q producer", "V, dO producer", "dQ sender 0",
                                        "dQ sender 1"};
  constexpr char const* kConsumers[] = {"consumer 0", "consumer 1"};
  return warp < 4 ? kProducers[warp] : kConsumers[warp / 4 - 1];
}

template <class Traits>
struct SmemOfBackward {
  using Storage = typename Traits::SharedStorage;
  static constexpr int kBytes = sizeof(typename Traits::Element);
  static constexpr int kQueries = Traits::kBlockM * Traits::kOwnColumns * kBytes;
  static constexpr int kOthers = Traits::kOthers * kBytes;
  static constexpr int kKeys = Traits::kBlockN * Traits::kHeadDim * kBytes;
  static constexpr SmemTile kTiles[] = {
      {"K", offsetof(Storage, k), kKeys, 1},
      {"V", offsetof(Storage, v), kKeys, 1},
      {"Q", offsetof(Storage, q), kQueries, Traits::kStages},
      {"dO", offsetof(Storage, grad_o), kQueries, Traits::kStagesDO},
      {"dS", offsetof(Storage, ds), Traits::kBlockN * Traits::kBlockM * kBytes, Traits::kStagesDS}};
  template <int kStages>
  static constexpr SmemRing ring(char const* name, size_t offset) {
    using Ring = sm90::Pipeline<kStages>;
    return {name, int(offset + offsetof(Ring, full)), int(offset + offsetof(Ring, empty)), kStages};
  }
  static constexpr SmemRing kRings[] = {
      ring<1>("K", offsetof(Storage, pipeline_K)), ring<1>("V", offsetof(Storage, pipeline_V)),
      ring<Traits::kStages>("Q", offsetof(Storage, pipeline_Q)),
      ring<Traits::kStagesDO>("dO", offsetof(Storage, pipeline_dO))};
};

template <FlashBackwardSm90Config kConfig, class Variant, BackwardFeatures... kBuilt>
EmulatedKernel const* emulated_kernel_of() {
  using Traits = sm90::backward::KernelTraits<kConfig>;
  using Element = typename Traits::Element;
  using Smem = SmemOfBackward<Traits>;
  constexpr int kColumns = kConfig.d_head;
  static constexpr EmulatedKernel const* kBefore =
      &kQueriesKernel<backward::kPreprocessThreads, sm90::kSmemAlignment,
                      backward::preprocess_cta<Element, kColumns>>;
  static constexpr EmulatedKernel const* kAfter =
      &kQueriesKernel<sm90::backward::kPostprocessThreads<kColumns>,
                      sizeof(sm90::backward::PostprocessStorage<Element, kColumns>),
                      sm90::backward::postprocess_cta<Element, kColumns>>;
  static EmulatedBackward backward{
      .shape = tile_shape(kConfig),
      .kernels = {kBefore, nullptr, kAfter},
      .refusal =
          [](BackwardParams const& params) { return sm90::backward::refusal(kConfig, params); },
      .launch = [](int phase, BackwardParams const& params, variant::Arguments const& captured,
                   int n_resident) -> Launch {
        if (phase == 1) {
          return launch_sm90_backward<kConfig, Variant, kBuilt...>(params, captured, n_resident);
        }
        return {.n_ctas =
                    phase == 0 ? backward::n_query_pieces(params) : backward::n_sum_pieces(params),
                .params = std::make_shared<BackwardParams>(params)};
      }};
  static EmulatedKernel const kernel{
      .n_threads = Traits::kNThreads,
      .smem_bytes = sizeof(typename Traits::SharedStorage),
      .access_bytes = 4,
      .starts_early = true,
      .watches_registers = true,
      .registers = sm90::backward::kEntryRegisters,
      .cluster = nullptr,
      .tiles = {Smem::kTiles, std::size(Smem::kTiles)},
      .rings = {Smem::kRings, std::size(Smem::kRings)},
      .refusal = nullptr,
      .launch = nullptr,
      .backward = &backward,
      .attach = [](Machine* m) { machine = m; },
      .run_thread =
          [](void const* params) {
            auto const& launch = *static_cast<Sm90BackwardLaunch<Variant> const*>(params);
            launch.backward(launch.params);
          },
      .role = role_of_backward_warp,
      .has_variant = kIsVariant<Variant>};
  backward.kernels[1] = &kernel;
  return &kernel;
}

template <FlashBackwardSm90Config kConfig, BackwardFeatures... kBuilt>
EmulatedKernel const* emulated_kernel() {
  return emulated_kernel_of<kConfig, variant::NoVariant, kBuilt...>();
}

}  // namespace pyflash::emulator
