// From a config to its row of the config map.
#pragma once

#include "cute_kernels/row.h"

namespace pyflash {

template <NegateConfig kConfig, NegateFeatures kFeatures>
void negate_kernel(NegateParams const& params) {
  for (int64_t first = 0; first < params.n; first += kConfig.vector) {
    for (int64_t i = first; i < first + kConfig.vector; ++i) {
      params.y[i] = -params.gathered[i] * (kFeatures.scaled ? params.scale : 1);
    }
  }
}

template <NegateConfig kConfig, NegateFeatures... kBuilt>
ConfigMapRow<Negate> kernel_row(char const* short_form, BuiltFor const& built_for) {
  static void const* const kernels[] = {
      reinterpret_cast<void const*>(negate_kernel<kConfig, kBuilt>)...};
  return make_row<kConfig, kBuilt...>(short_form, built_for, 64, 0, kernels);
}

}  // namespace pyflash
