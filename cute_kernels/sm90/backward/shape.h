// Sizes that the main kernel of a backward shares with those before and after it, and with its launcher.
#pragma once

#include "cute_kernels/backward_params.h"
#include "cute_kernels/sm90/shape.h"

namespace pyflash::sm90::backward {

inline constexpr int kSlab = 64;  // columns of 128 bytes

// Sums of dQ in fp32, by pieces of 64 x 64. What a warp has of one, 16 rows, follows each other, four values of each lane at a
// time.
inline constexpr int kValuesDQ = kMmaM * kSlab / kWarpgroup;  // of a thread
inline constexpr int kWarpDQ = 32 * kValuesDQ;                // floats of a warp
static_assert(kMmaM == kQueriesOfPiece && kSlab == kQueriesOfPiece && kWarpDQ == kSumsOfTurn);

inline constexpr int kEntryRegisters = 168;  // of a thread when the main kernel starts

// Warpgroup 0 loads.
constexpr int n_threads(FlashBackwardSm90Config const& config) {
  return kWarpgroup * (1 + config.n_consumers);
}

}  // namespace pyflash::sm90::backward
