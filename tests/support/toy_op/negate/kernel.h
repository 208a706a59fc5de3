// The kernel of a config and a combination of features, and what it takes.
#pragma once

#include "cute_kernels/kernel_resources.h"
#include "cute_kernels/negate/params.h"

namespace pyflash {

template <NegateConfig kConfig, NegateFeatures kFeatures>
void negate_kernel(NegateParams const& params) {
  for (int64_t first = 0; first < params.n; first += kConfig.vector) {
    for (int64_t i = first; i < first + kConfig.vector; ++i) {
      params.y[i] = -params.gathered[i] * (kFeatures.scaled ? params.scale : 1);
    }
  }
}

template <NegateConfig kConfig>
constexpr KernelResources kernel_resources(Span<NegateFeatures>) {
  return {.n_threads = 64, .smem_bytes = 0};
}

}  // namespace pyflash
