// What the rows of all families have in common. Included by their launch.h.
#pragma once

#include <iterator>

#include "cute_kernels/registry.h"

namespace pyflash {

// CTAs per SM by the resource model, ascending by architecture. Specialised by the emitted translation unit.
template <auto kConfig>
inline constexpr Span<ArchCtas> kCtasPerSm{};

// 0 where the architecture is not listed.
constexpr int of_arch(Span<ArchCtas> ctas_per_sm, int sm_arch) {
  for (ArchCtas const& entry : ctas_per_sm) {
    if (entry.sm_arch == sm_arch) {
      return entry.ctas;
    }
  }
  return 0;
}

// For the architecture being compiled; 0, where it is not listed, leaves the choice to the compiler.
constexpr int of_this_arch([[maybe_unused]] Span<ArchCtas> ctas_per_sm) {
#if defined(__CUDA_ARCH__)
  return of_arch(ctas_per_sm, __CUDA_ARCH__ / 10);
#else
  return 0;
#endif
}

// What the emitted config map knows of a config's object.
struct BuiltFor {
  char const* sm_archs;
  int ptx_arch;
  int rank;
};

// What a family's kernel does beside attention.
struct KernelTraitsOfRow {
  bool packs_heads = false;
  int max_cluster = 1;
};

// The row of a config that was built with these features, in the order of dispatch.
template <auto kConfig, ForwardFeatures... kBuilt>
ConfigMapRow make_row(char const* short_form, BuiltFor const& built_for, int n_threads,
                      int smem_bytes, ForwardLauncher launch, ProblemRefusal refusal = nullptr,
                      KernelTraitsOfRow traits = {}) {
  static constexpr ForwardFeatures kFeatures[] = {kBuilt...};
  return {.config = kConfig,
          .short_form = short_form,
          .dtype = kConfig.dtype,
          .d_head = kConfig.d_head,
          .B_r = kConfig.B_r,
          .B_c = kConfig.B_c,
          .n_threads = n_threads,
          .smem_bytes = smem_bytes,
          .features = {kFeatures, std::size(kFeatures)},
          .ctas_per_sm = kCtasPerSm<kConfig>,
          .launch = launch,
          .refusal = refusal,
          .sm_archs = built_for.sm_archs,
          .ptx_arch = built_for.ptx_arch,
          .rank = built_for.rank,
          .packs_heads = traits.packs_heads,
          .max_cluster = traits.max_cluster};
}

}  // namespace pyflash
