// Sizes that the main kernel of a backward shares with those before and after it, and with its launcher.
#pragma once

#include <bit>

#include "cute_kernels/backward_params.h"
#include "cute_kernels/sm90/shape.h"

namespace pyflash::sm90::backward {

inline constexpr int kSlabDS = 64;  // queries of a slab of dS
static_assert(kMmaM == kQueriesOfPiece && kSlabDS == kQueriesOfPiece);

// The widest slab of which so many columns are a multiple.
constexpr int slab_of(int columns) { return columns % 64 == 0 ? 64 : columns % 32 == 0 ? 32 : 16; }

// Of dQ that a consumer computes, of 64 queries: slabs of 64, or where they do not go round, all of its half.
constexpr int columns_dQ(int d_head) {
  return std::has_single_bit(unsigned(d_head)) ? 64 : d_head / 2;
}

// Sums of dQ in fp32, by pieces of 64 queries and so many columns. What a warp has of one, 16 rows, follows each other, four values
// of each lane at a time.
template <int kHeadDim>
struct PieceDQ {
  static constexpr int kColumns = columns_dQ(kHeadDim);
  static constexpr int kValues = kMmaM * kColumns / kWarpgroup;  // of a thread
  static constexpr int kWarpFloats = 32 * kValues;               // of a warp
  // A part that is rounded at a time.
  static constexpr int kSlab = slab_of(kColumns);
  static constexpr int kVectors = kMmaM * kSlab / kWarpgroup / 4;  // of a thread
};

inline constexpr int kEntryRegisters = 168;  // of a thread when the main kernel starts

// Warpgroup 0 loads.
constexpr int n_threads(FlashBackwardSm90Config const& config) {
  return kWarpgroup * (1 + config.n_consumers);
}

// Each consumer owns 64 keys. Where dK and dV of 64 keys have no room in its registers, all of a CTA own the same keys, compute the
// same scores, and have a share of the columns each; or several CTAs do that, the consumers of each with keys of their own.
constexpr bool is_wide(FlashBackwardSm90Config const& config) { return config.d_head > 128; }
constexpr bool shares_keys(FlashBackwardSm90Config const& config) {
  return is_wide(config) && config.B_c == kMmaM;
}
constexpr int column_parts(FlashBackwardSm90Config const& config) {
  return is_wide(config) && config.B_c > kMmaM ? 2 : 1;
}
// Columns of dQ, dK and dV that a CTA computes, and of dK and dV, a consumer.
constexpr int columns_of_cta(FlashBackwardSm90Config const& config) {
  return config.d_head / column_parts(config);
}
constexpr int columns_dKV(FlashBackwardSm90Config const& config) {
  return columns_of_cta(config) / (shares_keys(config) ? config.n_consumers : 1);
}

// Blocks of dO in shared memory: more than one have no room where CTAs have a part of the columns.
constexpr int stages_of_dO(FlashBackwardSm90Config const& config) {
  return column_parts(config) > 1 ? 1 : config.stages;
}
// Elements of Q and dO in shared memory: of the columns of others, a block of each is there.
constexpr int elements_of_queries(FlashBackwardSm90Config const& config) {
  int const own = columns_of_cta(config);
  return config.B_r * ((config.stages + stages_of_dO(config)) * own + 2 * (config.d_head - own));
}

// Columns of a slab of K, and of one of V, Q and dO: an operand's columns are whole slabs.
constexpr int slab_of_K(FlashBackwardSm90Config const& config) {
  return slab_of(columns_dQ(config.d_head));
}
constexpr int slab_of_others(FlashBackwardSm90Config const& config) {
  return slab_of(columns_dKV(config));
}

// The most CTAs that divide the query heads of a tile, as a cluster. Each leaves what others add up of its dV and dK where Q and
// dO were.
constexpr int max_cluster(FlashBackwardSm90Config const& config) {
  int const room = elements_of_queries(config) * kElementBytes;
  int const parts = 2 * config.n_consumers;
  int cluster = 4;
  while ((parts - parts / cluster) * kMmaM * columns_dKV(config) * int(sizeof(float)) > room) {
    cluster /= 2;
  }
  return cluster;
}

}  // namespace pyflash::sm90::backward
