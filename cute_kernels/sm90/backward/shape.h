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

// Each consumer owns 64 keys. Where dK and dV of 64 keys have no room in its registers, all own the same keys, compute the same
// scores, and have a share of the columns each.
constexpr bool shares_keys(FlashBackwardSm90Config const& config) { return config.d_head > 128; }
constexpr int columns_dKV(FlashBackwardSm90Config const& config) {
  return shares_keys(config) ? config.d_head / config.n_consumers : config.d_head;
}

// The most CTAs that divide the query heads of a tile, as a cluster. Each leaves what others add up of its dV and dK where Q and
// dO were.
constexpr int max_cluster(FlashBackwardSm90Config const& config) {
  int const room = 2 * config.stages * config.B_r * config.d_head * kElementBytes;
  int const parts = 2 * config.n_consumers;
  int cluster = 4;
  while ((parts - parts / cluster) * kMmaM * columns_dKV(config) * int(sizeof(float)) > room) {
    cluster /= 2;
  }
  return cluster;
}

}  // namespace pyflash::sm90::backward
