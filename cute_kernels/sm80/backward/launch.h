// From a config to its row of the config map. Included by the emitted translation units only.
#pragma once

#include "cute_kernels/row.h"
#include "cute_kernels/sm80/backward/kernel.h"

namespace pyflash {

template <FlashBackwardKernelConfig kConfig, BackwardFeatures... kBuilt>
ConfigMapRow<Backward> kernel_row(char const* short_form, BuiltFor const& built_for) {
  using Traits = sm80::backward::KernelTraits<kConfig>;
  static void const* const kernels[] = {
      reinterpret_cast<void const*>(flash_backward_kernel<kConfig, kBuilt>)...};
  return make_row<kConfig, kBuilt...>(short_form, built_for, Traits::kNThreads,
                                      sizeof(typename Traits::SharedStorage), kernels);
}

}  // namespace pyflash
