// From a config and a variant to a row of a kernel library. Included by the emitted translation units only.
#pragma once

#include "cute_kernels/sm80/backward/backward_kernel.cuh"
#include "cute_kernels/sm80/backward/launcher.h"
#include "cute_kernels/sm80/backward/listed.h"
#include "cute_kernels/variant/kernel_params.h"

namespace pyflash {

template <class Variant>
cudaError_t launch_variant(void const* kernel, FlashBackwardKernelConfig const& config,
                           ConfigMapRow<Backward> const& row, BackwardParams const& params,
                           typename Variant::Params const& captured,
                           variant::Made<Variant> const& made, cudaStream_t stream) {
  variant::WithVariant<BackwardParams, Variant> given{params, made, captured};
  return launch_with_params(kernel, config, row, params, &given, stream);
}

}  // namespace pyflash

#include "cute_kernels/kernel_resources.h"
#include "cute_kernels/variant/gradient_launch.h"

namespace pyflash {

template <FlashBackwardKernelConfig kConfig, class Variant, BackwardFeatures kFeatures>
__global__ void __launch_bounds__(sm80::backward::KernelTraits<kConfig>::kNThreads,
                                  of_this_arch(kCtasPerSm<kConfig>))
    flash_backward_variant_kernel(
        __grid_constant__ variant::WithVariant<BackwardParams, Variant> const params) {
#if defined(__CUDA_ARCH__)  // the host needs no body
  sm80::backward::backward_cta<sm80::backward::KernelTraits<kConfig>, kFeatures, Variant>(params);
#endif
}

template <FlashBackwardKernelConfig kConfig, class Variant, BackwardFeatures... kBuilt>
GradientRow variant_row(char const* short_form, char const* key, BuiltFor const& built_for) {
  using Traits = sm80::backward::KernelTraits<kConfig>;
  static void const* const kernels[] = {
      reinterpret_cast<void const*>(flash_backward_variant_kernel<kConfig, Variant, kBuilt>)...};
  return variant::make_gradient_row<kConfig, Variant>(
      key, make_row<kConfig, kBuilt...>(short_form, built_for, Traits::kNThreads,
                                        sizeof(typename Traits::SharedStorage), kernels));
}

}  // namespace pyflash
