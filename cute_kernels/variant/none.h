// No variant: every pair counts, by the scaled score.
#pragma once

#include <tuple>
#include <type_traits>

namespace pyflash::variant {

struct NoVariant {
  static constexpr bool kHasMask = false;
  static constexpr bool kHasScore = false;
  static constexpr bool kMaskReadsTensors = false;
  static constexpr bool kMaskReadsTensorsByPosition = false;
  static constexpr bool kMaskReadsBatch = false;
  static constexpr bool kMaskReadsHead = false;
  static constexpr bool kMaskIsDear = false;
  using Streams = std::tuple<>;
};

template <class Variant>
inline constexpr bool kIsVariant = !std::is_same_v<Variant, NoVariant>;

}  // namespace pyflash::variant
