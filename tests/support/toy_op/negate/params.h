// A problem of the op as its kernels see it, and what they can do.
#pragma once

#include <compare>
#include <cstdint>

#include "cute_kernels/config.h"
#include "cute_kernels/feature_members.h"

struct NegateFeatures {
  bool scaled = false;
  bool right_window = false;

  friend auto operator<=>(NegateFeatures const&, NegateFeatures const&) = default;

  struct Member {
    char const* name;
    bool NegateFeatures::* value;
  };
  static constexpr Member kMembers[] = {{"scaled", &NegateFeatures::scaled},
                                        {"right_window", &NegateFeatures::right_window}};
};

namespace pyflash {

static_assert(lists_every_member_once<NegateFeatures>());

struct NegateParams {
  float const* x;
  float* y;
  float* gathered;
  int64_t n;
  int d_head;
  float scale;
  bool twice;
};

}  // namespace pyflash
