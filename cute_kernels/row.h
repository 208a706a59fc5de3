// What the rows of all families have in common. Included by their launch.h.
#pragma once

#include <type_traits>

#include "cute_kernels/kernel_library.h"
#include "cute_kernels/registry.h"

namespace pyflash {

// What the emitted config map knows of a config's object.
struct BuiltFor {
  char const* sm_archs;
  int ptx_arch;
  int rank;
};

// The op of a config that is a template argument.
template <auto kConfig>
using OpOfValue = OpOf<std::remove_cvref_t<decltype(kConfig)>>;

// The row of a config that was built with these features, in the order of dispatch. kernels: theirs, as the row has them.
template <auto kConfig, typename OpOfValue<kConfig>::Features... kBuilt>
ConfigMapRow<OpOfValue<kConfig>> make_row(char const* short_form, BuiltFor const& built_for,
                                          int n_threads, int smem_bytes,
                                          void const* const (&kernels)[sizeof...(kBuilt)]) {
  using Op = OpOfValue<kConfig>;
  static constexpr typename Op::Features kFeatures[] = {kBuilt...};
  ConfigMapRow<Op> row{{.short_form = short_form,
                        .dtype = kConfig.dtype,
                        .d_head = kConfig.d_head,
                        .n_threads = n_threads,
                        .smem_bytes = smem_bytes,
                        .kernels = {kernels, sizeof...(kBuilt)},
                        .ctas_per_sm = kCtasPerSm<kConfig>,
                        .sm_archs = built_for.sm_archs,
                        .ptx_arch = built_for.ptx_arch,
                        .rank = built_for.rank},
                       kConfig,
                       {kFeatures, sizeof...(kBuilt)}};
  describe(row);
  return row;
}

}  // namespace pyflash
