// From a config to its row of the config map. Included by the emitted translation units only.
#pragma once

#include "cute_kernels/row.h"
#include "cute_kernels/sm90/backward/kernel.h"

namespace pyflash {

template <FlashBackwardSm90Config kConfig, BackwardFeatures... kBuilt>
ConfigMapRow<Backward> kernel_row(char const* short_form, BuiltFor const& built_for) {
  using Traits = sm90::backward::KernelTraits<kConfig>;
  static void const* const kernels[] = {
      reinterpret_cast<void const*>(flash_backward_sm90_kernel<kConfig, kBuilt>)...};
  return make_row<kConfig, kBuilt...>(short_form, built_for, Traits::kNThreads,
                                      sizeof(typename Traits::SharedStorage), kernels);
}

}  // namespace pyflash
