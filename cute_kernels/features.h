// What a kernel can do beyond attention in which every query attends every key. Combinations are compiled separately, so
// that one feature cannot slow the kernels without it.
#pragma once

#include <compare>

#include "cute_kernels/params.h"

// NOTE: outside namespace pyflash for the same reason as the configs: config.h.
struct ForwardFeatures {
  bool right_window = false;  // causal too
  bool left_window = false;
  bool predicated_head_dim = false;  // d_head below that of the config
  bool softcap = false;
  bool sinks = false;

  friend auto operator<=>(ForwardFeatures const&, ForwardFeatures const&) = default;

  constexpr bool covers(ForwardFeatures needed) const {
    return right_window >= needed.right_window && left_window >= needed.left_window &&
           predicated_head_dim >= needed.predicated_head_dim && softcap >= needed.softcap &&
           sinks >= needed.sinks;
  }
};

namespace pyflash {

inline ForwardFeatures features_needed(ForwardParams const& params, int d_head_of_config) {
  return {.right_window = params.window_right < kNoWindow,
          .left_window = params.window_left < kNoWindow,
          .predicated_head_dim = params.d_head < d_head_of_config,
          .softcap = params.softcap != 0,
          .sinks = params.sinks != nullptr};
}

}  // namespace pyflash
