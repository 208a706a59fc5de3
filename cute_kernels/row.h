// What the rows of all families have in common. Included by their launch.h.
#pragma once

#include "cute_kernels/registry.h"

namespace pyflash {

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
          .features = {kFeatures, sizeof...(kBuilt)},
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
