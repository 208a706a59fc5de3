// The op `negate`: y = -x, times `scale` where that is not 1, and once more where asked for, by three kernels in a row: x is
// gathered into the workspace, the config's kernel negates it, and another negates y in place.
#pragma once

#include <array>
#include <cstdint>

#include "cute_kernels/negate/params.h"
#include "cute_kernels/op.h"

namespace pyflash {

inline NegateFeatures features_needed(NegateParams const& params, int) {
  return {.scaled = params.scale != 1};
}

struct NegateShape {
  int rows;
};

struct Negate {
  static constexpr char const* kName = "negate";
  using Params = NegateParams;
  using Features = NegateFeatures;
  using Shape = NegateShape;

  static int gather(NegateParams const& params, DType, void*) {
    for (int64_t i = 0; i < params.n; ++i) {
      params.gathered[i] = params.x[i];
    }
    return 0;
  }
  static bool again(NegateParams const& params) { return params.twice; }
  static int negate_y(NegateParams const& params, DType, void*) {
    for (int64_t i = 0; i < params.n; ++i) {
      params.y[i] = -params.y[i];
    }
    return 0;
  }
  static constexpr std::array kPhases = {
      Phase<NegateParams>{.launch = gather}, Phase<NegateParams>{},
      Phase<NegateParams>{.is_needed = again, .launch = negate_y}};

  static constexpr std::array<Buffer<NegateParams>, 1> workspace(NegateParams const& params) {
    return {{{&NegateParams::gathered, params.n}}};
  }
  static constexpr char const* kWorkspace = "what is gathered";
};

}  // namespace pyflash
