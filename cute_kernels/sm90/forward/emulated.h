// From a config to its kernels for the emulator. Included by the emitted translation units only.
#pragma once

// NOTE: first, because it decides what CuTe's atoms call.
#include "cute_kernels/emulator/atoms_sm90.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <type_traits>

#include "cute_kernels/common/clusters.h"
#include "cute_kernels/emulator/atoms.h"
#include "cute_kernels/emulator/machine.h"
#include "cute_kernels/emulator/tensor_map.h"
#include "cute_kernels/emulator/variant.h"
#include "cute_kernels/sm90/forward/forward_kernel.cuh"
#include "cute_kernels/sm90/forward/host.h"
#include "cute_kernels/sm90/forward/listed.h"
#include "cute_kernels/sm90/forward/plan.h"
#include "cute_kernels/sm90/forward/stream_shape.h"
#include "cute_kernels/sm90/forward/traits.h"

namespace pyflash::emulator {

template <class Variant>
struct Sm90Launch : VariantLaunch<sm90::KernelParams, Variant> {
  using Params = sm90::ParamsWith<Variant>;
  void (*forward)(Params const& params);  // of the features that the problem needs
};

template <FlashForwardSm90Config kConfig, class Variant, ForwardFeatures... kBuilt>
Launch launch_sm90(ListedForwardParams const& params, variant::Arguments const& captured,
                   int n_resident) {
  using Traits = sm90::KernelTraits<kConfig>;
  auto launch = std::make_shared<Sm90Launch<Variant>>();
  bool const covered = run_first_that_covers<ForwardFeatures, kBuilt...>(
      features_needed(params, Traits::kHeadDim),
      [&](auto features) { launch->forward = sm90::forward_cta<Traits, features.value, Variant>; });
  if (!covered) {
    return {.n_ctas = 0,
            .params = nullptr,
            .error = "no built combination of features covers the problem"};
  }
  sm90::Plan plan;
  if (sm90::make_plan(plan, kConfig, params, n_resident, encode_tensor_map) != cudaSuccess) {
    return {.n_ctas = 0,
            .params = nullptr,
            .error = "the driver would encode no tensor map of q, k or v"};
  }
  launch->capture(captured, listed_problem(kConfig, params), takes_order(kConfig, params));
  if constexpr (kIsVariant<Variant>) {
    set_variant_order(plan, kConfig, params, launch->params.order_of_tiles);
  }
  static_cast<sm90::KernelParams&>(launch->params) = plan.params;
  return {.n_ctas = plan.n_ctas,
          .cluster = params.cluster,
          .params = launch,
          .error = nullptr,
          .runs_beside = params.runs_beside};
}

template <class Traits>
char const* role_of_warp(int warp) {
  constexpr char const* kProducers[] = {"Q producer", "K producer", "V producer", "idle"};
  constexpr char const* kConsumers[] = {"consumer 0", "consumer 1", "consumer 2", "consumer 3"};
  return warp < 4 ? kProducers[warp] : kConsumers[warp / 4 - 1];
}

template <class Traits>
struct SmemOf {
  using Storage = typename Traits::SharedStorage;
  using Element = typename Traits::Element;
  static constexpr int kPipeline = sizeof(sm90::Pipeline<1>);
  static constexpr int kStageBytes = Traits::kBlockN * Traits::kHeadDim * sizeof(Element);
  static constexpr SmemTile kTiles[] = {
      {"Q", offsetof(Storage, q), Traits::kMmaM * Traits::kHeadDim * int(sizeof(Element)),
       Traits::kNConsumers},
      {"K", offsetof(Storage, k), kStageBytes, Traits::kStages},
      {"V", offsetof(Storage, v), kStageBytes, Traits::kStages}};
  template <int kStages>
  static constexpr SmemRing ring(char const* name, int offset) {
    using Ring = sm90::Pipeline<kStages>;
    return {name, offset + int(offsetof(Ring, full)), offset + int(offsetof(Ring, empty)), kStages};
  }
  static constexpr auto kRings = [] {
    std::array<SmemRing, Traits::kNConsumers + 2> rings{};
    constexpr char const* kNames[] = {"Q of consumer 0", "Q of consumer 1", "Q of consumer 2",
                                      "Q of consumer 3"};
    for (int i = 0; i < Traits::kNConsumers; ++i) {
      rings[i] = ring<1>(kNames[i], offsetof(Storage, pipeline_Q) + i * kPipeline);
    }
    rings[Traits::kNConsumers] = ring<Traits::kStages>("K", offsetof(Storage, pipeline_K));
    rings[Traits::kNConsumers + 1] = ring<Traits::kStages>("V", offsetof(Storage, pipeline_V));
    return rings;
  }();
};

template <FlashForwardSm90Config kConfig, class Variant, ForwardFeatures... kBuilt>
EmulatedKernel const* emulated_kernel_of() {
  using Traits = sm90::KernelTraits<kConfig>;
  using Smem = SmemOf<Traits>;
  constexpr int kRegisterFile = 64 << 10;
  constexpr int kRegisterUnit = 8;
  static constexpr EmulatedKernel kernel{
      .n_threads = Traits::kNThreads,
      .smem_bytes = sm90::variant_smem_bytes<Variant>(
          kConfig, int(sizeof(typename Traits::SharedStorage)) +
                       sm90::extra_smem_bytes(kConfig, (kBuilt.fixed_splits || ...))),
      .access_bytes = Traits::kMaxCluster > 1 ? 4 : sm90::stream_access_bytes<Variant>(kConfig),
      .starts_early = true,
      .watches_registers = true,
      .registers =
          kRegisterFile / Traits::kCtasPerSm / Traits::kNThreads / kRegisterUnit * kRegisterUnit,
      .cluster =
          [](ForwardParams const& params, int n_resident) {
            return cluster_of(params.num_splits, Traits::kMaxCluster,
                              sm90::count_tiles(kConfig, params), n_resident);
          },
      .tiles = {Smem::kTiles, std::size(Smem::kTiles)},
      .rings = {Smem::kRings.data(), std::size(Smem::kRings)},
      .refusal = [](ListedForwardParams const& params) { return sm90::refusal(kConfig, params); },
      .launch = launch_sm90<kConfig, Variant, kBuilt...>,
      .attach = [](Machine* m) { machine = m; },
      .run_thread =
          [](void const* params) {
            auto const& launch = *static_cast<Sm90Launch<Variant> const*>(params);
            launch.forward(launch.params);
          },
      .role = role_of_warp<Traits>,
      .has_variant = kIsVariant<Variant>,
      .shape = tile_shape(kConfig),
      .features = kBuiltFeatures<kBuilt...>};
  return &kernel;
}

template <FlashForwardSm90Config kConfig, ForwardFeatures... kBuilt>
EmulatedKernel const* emulated_kernel() {
  return emulated_kernel_of<kConfig, variant::NoVariant, kBuilt...>();
}

}  // namespace pyflash::emulator
