// From a config to its row of the config map. Included by the emitted translation units only.
#pragma once

#include "cute_kernels/row.h"
#include "cute_kernels/sm80/kernel.h"
#include "cute_kernels/sm80/launcher.h"

namespace pyflash {

// With the first combination that covers the problem; where none does, the host has refused it.
template <FlashForwardKernelConfig kConfig, ForwardFeatures... kBuilt>
int launch_forward(ForwardParams const& params, void* stream) {
  using Traits = sm80::KernelTraits<kConfig>;
  int error = cudaErrorNotSupported;
  run_first_that_covers<kBuilt...>(features_needed(params, kConfig.d_head), [&](auto features) {
    auto const kernel = flash_forward_kernel<kConfig, features.value>;
    sm80::LaunchShape const shape{.block_rows = Traits::kBlockM,
                                  .n_threads = Traits::kNThreads,
                                  .smem_bytes = sizeof(typename Traits::SharedStorage)};
    error = sm80::launch(reinterpret_cast<void const*>(kernel), shape, params,
                         static_cast<cudaStream_t>(stream));
  });
  return error;
}

template <FlashForwardKernelConfig kConfig, ForwardFeatures... kBuilt>
ConfigMapRow forward_row(char const* short_form, BuiltFor const& built_for) {
  using Traits = sm80::KernelTraits<kConfig>;
  return make_row<kConfig, kBuilt...>(short_form, built_for, Traits::kNThreads,
                                      sizeof(typename Traits::SharedStorage),
                                      launch_forward<kConfig, kBuilt...>);
}

}  // namespace pyflash
