// Makes rows of the config map. Included by the emitted translation units.
#pragma once

#include <type_traits>

#include "cute_kernels/kernel_library.h"
#include "cute_kernels/registry.h"

namespace pyflash {

// What the emitted table of rows with a variant knows of a config's object.
struct BuiltFor {
  char const* sm_archs;
  int ptx_arch;
  int rank;
};

// The op of a config that is a template argument.
template <auto kConfig>
using OpOfValue = OpOf<std::remove_cvref_t<decltype(kConfig)>>;

// The row of a config that was built with these features, in the order of dispatch. What follows from the config is filled in.
template <class Config>
ConfigMapRow<OpOf<Config>> make_row(RowOfAnyOp const& known, Config const& config,
                                    Span<typename OpOf<Config>::Features> built) {
  ConfigMapRow<OpOf<Config>> row{known, config, built};
  describe(row);
  return row;
}

// The same of a config that is a template argument. kernels: those of the features, as the row has them.
template <auto kConfig, typename OpOfValue<kConfig>::Features... kBuilt>
ConfigMapRow<OpOfValue<kConfig>> make_row(char const* short_form, BuiltFor const& built_for,
                                          int n_threads, int smem_bytes,
                                          void const* const (&kernels)[sizeof...(kBuilt)]) {
  static constexpr typename OpOfValue<kConfig>::Features kFeatures[] = {kBuilt...};
  RowOfAnyOp const known{.short_form = short_form,
                         .dtype = kConfig.dtype,
                         .d_head = kConfig.d_head,
                         .n_threads = n_threads,
                         .smem_bytes = smem_bytes,
                         .kernels = {kernels, sizeof...(kBuilt)},
                         .ctas_per_sm = kCtasPerSm<kConfig>,
                         .sm_archs = built_for.sm_archs,
                         .ptx_arch = built_for.ptx_arch,
                         .rank = built_for.rank};
  return make_row(known, kConfig, {kFeatures, sizeof...(kBuilt)});
}

}  // namespace pyflash
