// From a config and a variant to a row of a kernel library. Included by the emitted translation units only.
#pragma once

#include "cute_kernels/sm90/backward/backward_kernel.cuh"
#include "cute_kernels/sm90/backward/launcher.h"
#include "cute_kernels/sm90/backward/listed.h"
#include "cute_kernels/variant/kernel_params.h"

namespace pyflash {

template <class Variant>
cudaError_t launch_variant(void const* kernel, FlashBackwardSm90Config const& config,
                           ConfigMapRow<Backward> const& row, BackwardParams const& params,
                           typename Variant::Params const& captured,
                           variant::Made<Variant> const& made, cudaStream_t stream) {
  sm90::backward::Plan plan;
  cudaError_t const error = sm90::backward::plan_launch(plan, config, row, params);
  if (error != cudaSuccess) {
    return error;
  }
  variant::WithVariant<sm90::backward::KernelParams, Variant> given{plan.params, made, captured};
  return sm90::backward::launch_plan(plan, kernel, row, &given, stream);
}

}  // namespace pyflash

#include "cute_kernels/variant/gradient_launch.h"

namespace pyflash {

template <FlashBackwardSm90Config kConfig, class Variant, BackwardFeatures kFeatures>
__global__ void __launch_bounds__(sm90::backward::KernelTraits<kConfig>::kNThreads, 1)
    flash_backward_sm90_variant_kernel(
        __grid_constant__ variant::WithVariant<sm90::backward::KernelParams, Variant> const
            params) {
#if defined(__CUDA_ARCH__)  // the host needs no body
  sm90::backward::backward_cta<sm90::backward::KernelTraits<kConfig>, kFeatures, Variant>(params);
#endif
}

template <FlashBackwardSm90Config kConfig, class Variant, BackwardFeatures... kBuilt>
GradientRow variant_row(char const* short_form, char const* key, BuiltFor const& built_for) {
  using Traits = sm90::backward::KernelTraits<kConfig>;
  static void const* const kernels[] = {reinterpret_cast<void const*>(
      flash_backward_sm90_variant_kernel<kConfig, Variant, kBuilt>)...};
  return variant::make_gradient_row<kConfig, Variant>(
      key, make_row<kConfig, kBuilt...>(short_form, built_for, Traits::kNThreads,
                                        sizeof(typename Traits::SharedStorage), kernels));
}

}  // namespace pyflash
