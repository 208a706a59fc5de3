// Makes rows of the config map. Included by the emitted translation units.
#pragma once

#include "cute_kernels/kernel_library.h"
#include "cute_kernels/registry.h"

namespace pyflash {

// The row of a config that was built with these features, in the order of dispatch. What follows from the config is filled in.
template <class Config>
ConfigMapRow<OpOf<Config>> make_row(RowOfAnyOp const& known, Config const& config,
                                    Span<typename OpOf<Config>::Features> built) {
  ConfigMapRow<OpOf<Config>> row{known, config, built};
  describe(row);
  return row;
}

}  // namespace pyflash
