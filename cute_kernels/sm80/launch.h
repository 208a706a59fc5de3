// From a config to a launched kernel: the __global__ wrapper, its launcher and its row of the config map. Included by the
// emitted translation units only.
#pragma once

#include <cuda_runtime_api.h>

#include "cute_kernels/registry.h"
#include "cute_kernels/sm80/forward_kernel.cuh"

namespace pyflash {

// Specialised by the emitted translation unit.
template <FlashForwardKernelConfig kConfig>
inline constexpr CtasPerSm kCtasPerSm{};

// For the architecture being compiled; 0 leaves the choice to the compiler.
constexpr int of_this_arch(CtasPerSm ctas) {
#if !defined(__CUDA_ARCH__)
  return 0;
#elif __CUDA_ARCH__ == 800
  return ctas.sm80;
#elif __CUDA_ARCH__ == 860
  return ctas.sm86;
#elif __CUDA_ARCH__ == 890
  return ctas.sm89;
#elif __CUDA_ARCH__ == 900
  return ctas.sm90;
#else
  return 0;
#endif
}

template <FlashForwardKernelConfig kConfig, Variant kVariant>
__global__ void __launch_bounds__(sm80::KernelTraits<kConfig>::kNThreads,
                                  of_this_arch(kCtasPerSm<kConfig>))
    flash_forward_kernel(__grid_constant__ ForwardParams const params) {
  sm80::forward_cta<sm80::KernelTraits<kConfig>, kVariant>(params);
}

// All CTAs in grid.x: no limit of 65535 on heads or batches.
template <FlashForwardKernelConfig kConfig, Variant kVariant>
int launch_kernel(ForwardParams const& params, cudaStream_t stream) {
  using Traits = sm80::KernelTraits<kConfig>;
  constexpr int kSmemBytes = sizeof(typename Traits::SharedStorage);
  auto const kernel = flash_forward_kernel<kConfig, kVariant>;
  // Per device and idempotent: the attribute belongs to the current device's copy of the kernel.
  cudaError_t const error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes);
  if (error != cudaSuccess) {
    return error;
  }
  int64_t const n_ctas = sm80::n_ctas<Traits>(params);
  if (n_ctas > INT32_MAX) {
    return cudaErrorInvalidConfiguration;
  }
  kernel<<<dim3(uint32_t(n_ctas)), dim3(Traits::kNThreads), kSmemBytes, stream>>>(params);
  return cudaGetLastError();
}

template <FlashForwardKernelConfig kConfig>
int launch_forward(ForwardParams const& params, void* stream) {
  auto const cuda_stream = static_cast<cudaStream_t>(stream);
  switch (variant_of(params, kConfig.d_head)) {
    case Variant::Plain:
      return launch_kernel<kConfig, Variant::Plain>(params, cuda_stream);
    case Variant::Causal:
      return launch_kernel<kConfig, Variant::Causal>(params, cuda_stream);
    case Variant::General:
      return launch_kernel<kConfig, Variant::General>(params, cuda_stream);
    case Variant::Capped:
      return launch_kernel<kConfig, Variant::Capped>(params, cuda_stream);
  }
  return cudaErrorInvalidValue;
}

template <FlashForwardKernelConfig kConfig>
ConfigMapRow forward_row(char const* short_form, char const* sm_archs, int ptx_arch, int rank) {
  using Traits = sm80::KernelTraits<kConfig>;
  return {.config = kConfig,
          .short_form = short_form,
          .launch = launch_forward<kConfig>,
          .sm_archs = sm_archs,
          .ptx_arch = ptx_arch,
          .n_threads = Traits::kNThreads,
          .smem_bytes = sizeof(typename Traits::SharedStorage),
          .ctas_per_sm = kCtasPerSm<kConfig>,
          .rank = rank};
}

}  // namespace pyflash
