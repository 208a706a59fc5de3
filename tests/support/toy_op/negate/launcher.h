// Launches the family's kernels: calls a function of the host.
#pragma once

#include <cuda_runtime_api.h>

#include "cute_kernels/registry.h"

namespace pyflash {

inline cudaError_t launch_kernel(void const* kernel, NegateConfig const&,
                                 ConfigMapRow<Negate> const&, NegateParams const& params,
                                 cudaStream_t) {
  reinterpret_cast<void (*)(NegateParams const&)>(const_cast<void*>(kernel))(params);
  return cudaSuccess;
}

inline ProblemRefusal<Negate> refusal_of(NegateConfig const&) {
  return [](ConfigMapRow<Negate> const& row, NegateParams const& params) -> char const* {
    return params.n % row.shape.rows ? "it has rows that are no whole tile" : nullptr;
  };
}

}  // namespace pyflash
