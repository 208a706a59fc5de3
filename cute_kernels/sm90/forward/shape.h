// What the kernel and its launcher agree on about a config, beside its fields.
#pragma once

#include "cute_kernels/common/kv_source.h"
#include "cute_kernels/config.h"
#include "cute_kernels/sm90/shape.h"

namespace pyflash::sm90 {

inline constexpr int kPartPadding = 8;  // columns, of a split's part of O in shared memory

// Warpgroup 0 loads.
constexpr int n_threads(FlashForwardSm90Config const& config) {
  return kWarpgroup * (1 + config.n_consumers);
}

// That share the registers of an SM: two of one consumer, or three, but one where a row of O takes as many of its threads' registers
// as two leave each.
constexpr int ctas_per_sm(FlashForwardSm90Config const& config) {
  constexpr int kRegisters = 65536;
  int const of_two = kRegisters / 2 / n_threads(config);
  int const of_O = kMmaM * config.d_head / kWarpgroup;
  return config.n_consumers > 1 || of_O >= of_two ? 1 : config.three_ctas ? 3 : 2;
}

// Columns of a slab of shared memory, which is a TMA box: 128 or 64 bytes.
constexpr int slab_columns(FlashForwardSm90Config const& config) {
  return config.d_head % 64 == 0 ? 64 : 32;
}

// Keys in pages: a TMA box has as many rows as lie in one page and divide a block, a power of two.
PYFLASH_HOST_DEVICE constexpr int box_rows(int B_c, Pages const& pages) {
  return smaller(1 << pages.log2_size, B_c & -B_c);
}

// The most splits of a tile that a cluster of CTAs merges. Each leaves its part, O and lse in fp32, where K and V were.
// NOTE: three_ctas is for many tiles, which need no splits.
constexpr int max_cluster(FlashForwardSm90Config const& config) {
  int const part_bytes = kMmaM * (config.d_head + kPartPadding + 1) * int(sizeof(float));
  int const bytes_of_kv = 2 * config.stages * config.B_c * config.d_head * kElementBytes;
  return config.n_consumers == 1 && !config.three_ctas && part_bytes <= bytes_of_kv ? 16 : 1;
}

// What a fold of splits (fold.h) takes of shared memory: O of the tile's rows in fp32, but for what fits where O leaves through, and a
// number for each thread.
constexpr int fold_bytes(FlashForwardSm90Config const& config) {
  int const threads = config.n_consumers * kWarpgroup;
  return config.B_r * (config.d_head * int(sizeof(float)) - slab_columns(config) * kElementBytes) +
         threads * int(sizeof(float));
}
// Whether a CTA may have all splits at fixed keys of a tile, and fold them.
constexpr bool folds_splits(FlashForwardSm90Config const& config) {
  constexpr int kBarriers = 1024;
  int const tiles = (config.B_r + 2 * config.stages * config.B_c) * config.d_head * kElementBytes +
                    config.B_r * slab_columns(config) * kElementBytes;
  bool const rows_decide = config.rows_decide || !config.rescale_threshold;
  return config.persistent && config.n_consumers >= 2 && rows_decide &&
         tiles + kBarriers + fold_bytes(config) <= kMostSmem;
}
// Behind SharedStorage, of kernels some of which have the feature.
constexpr int extra_smem_bytes(FlashForwardSm90Config const& config, bool fixed_splits) {
  return fixed_splits && folds_splits(config) ? fold_bytes(config) : 0;
}

}  // namespace pyflash::sm90
