// From a config to its row of the config map. Included by the emitted translation units only.
#pragma once

#include "cute_kernels/row.h"
#include "cute_kernels/sm90/forward/kernel.h"

namespace pyflash {

template <FlashForwardSm90Config kConfig, ForwardFeatures... kBuilt>
ConfigMapRow<Forward> kernel_row(char const* short_form, BuiltFor const& built_for) {
  using Traits = sm90::KernelTraits<kConfig>;
  static void const* const kernels[] = {
      reinterpret_cast<void const*>(flash_forward_sm90_kernel<kConfig, kBuilt>)...};
  return make_row<kConfig, kBuilt...>(
      short_form, built_for, Traits::kNThreads,
      sizeof(typename Traits::SharedStorage) +
          sm90::extra_smem_bytes(kConfig, (kBuilt.fixed_splits || ...)),
      kernels);
}

}  // namespace pyflash
