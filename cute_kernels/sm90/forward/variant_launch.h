// From a config and a variant to a row of a kernel library. Included by the emitted translation units only.
#pragma once

#include "cute_kernels/sm90/forward/forward_kernel.cuh"
#include "cute_kernels/sm90/forward/launcher.h"
#include "cute_kernels/sm90/forward/listed.h"
#include "cute_kernels/variant/kernel_params.h"

namespace pyflash {

template <class Variant>
cudaError_t launch_variant(void const* kernel, FlashForwardSm90Config const& config,
                           ConfigMapRow<Forward> const& row, Forward::Params const& params,
                           typename Variant::Params const& captured,
                           variant::Made<Variant> const& made, cudaStream_t stream) {
  sm90::Plan plan;
  cudaError_t const error = sm90::plan_launch(plan, config, row, params);
  if (error != cudaSuccess) {
    return error;
  }
  set_variant_order(plan, config, params, made.order_of_tiles);
  variant::WithVariant<sm90::KernelParams, Variant> given{plan.params, made, captured};
  return sm90::launch_plan(plan, kernel, row, &given, stream);
}

}  // namespace pyflash

#include "cute_kernels/variant/launch.h"

namespace pyflash {

template <FlashForwardSm90Config kConfig, class Variant, ForwardFeatures kFeatures>
__global__ void __launch_bounds__(sm90::KernelTraits<kConfig>::kNThreads,
                                  sm90::KernelTraits<kConfig>::kCtasPerSm)
    flash_forward_sm90_variant_kernel(
        __grid_constant__ variant::WithVariant<sm90::KernelParams, Variant> const params) {
#if defined(__CUDA_ARCH__)  // the host needs no body
  sm90::forward_cta<sm90::KernelTraits<kConfig>, kFeatures, Variant>(params);
#endif
}

template <FlashForwardSm90Config kConfig, class Variant, ForwardFeatures... kBuilt>
VariantRow variant_row(char const* short_form, char const* key, BuiltFor const& built_for) {
  using Traits = sm90::KernelTraits<kConfig>;
  static void const* const kernels[] = {reinterpret_cast<void const*>(
      flash_forward_sm90_variant_kernel<kConfig, Variant, kBuilt>)...};
  return variant::make_variant_row<kConfig, Variant>(
      key, make_row<kConfig, kBuilt...>(short_form, built_for, Traits::kNThreads,
                                        sizeof(typename Traits::SharedStorage), kernels));
}

}  // namespace pyflash
