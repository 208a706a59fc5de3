// No variant: every pair counts, by the scaled score.
#pragma once

namespace pyflash::variant {

struct NoVariant {
  static constexpr bool kHasMask = false;
  static constexpr bool kHasScore = false;
};

}  // namespace pyflash::variant
