// From a config and a variant to a row of a kernel library. Included by the emitted translation units only.
#pragma once

#include "cute_kernels/sm80/forward/forward_kernel.cuh"
#include "cute_kernels/sm80/forward/launcher.h"
#include "cute_kernels/sm80/forward/listed.h"
#include "cute_kernels/variant/kernel_params.h"

namespace pyflash {

template <class Variant>
cudaError_t launch_variant(void const* kernel, FlashForwardKernelConfig const& config,
                           ConfigMapRow<Forward> const& row, Forward::Params const& params,
                           typename Variant::Params const& captured,
                           variant::Made<Variant> const& made, cudaStream_t stream) {
  variant::WithVariant<Forward::Params, Variant> given{params, made, captured};
  return launch_with_params(kernel, config, row, params, &given, stream);
}

}  // namespace pyflash

#include "cute_kernels/variant/launch.h"

namespace pyflash {

template <FlashForwardKernelConfig kConfig, class Variant, ForwardFeatures kFeatures>
__global__ void __launch_bounds__(sm80::KernelTraits<kConfig>::kNThreads,
                                  of_this_arch(kCtasPerSm<kConfig>))
    flash_forward_variant_kernel(
        __grid_constant__ variant::WithVariant<Forward::Params, Variant> const params) {
#if defined(__CUDA_ARCH__)  // the host needs no body
  sm80::forward_cta<sm80::KernelTraits<kConfig>, kFeatures, Variant>(params);
#endif
}

template <FlashForwardKernelConfig kConfig, class Variant, ForwardFeatures... kBuilt>
VariantRow variant_row(char const* short_form, char const* key, BuiltFor const& built_for) {
  using Traits = sm80::KernelTraits<kConfig>;
  static void const* const kernels[] = {
      reinterpret_cast<void const*>(flash_forward_variant_kernel<kConfig, Variant, kBuilt>)...};
  return variant::make_variant_row<kConfig, Variant>(
      key, make_row<kConfig, kBuilt...>(short_form, built_for, Traits::kNThreads,
                                        sizeof(typename Traits::SharedStorage), kernels));
}

}  // namespace pyflash
