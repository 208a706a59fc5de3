// What of a config of op `backward` host code looks at, and the numbers that problems are divided by.
#pragma once

#include <cstdint>

namespace pyflash {

// How a config cuts a problem into tiles.
struct BackwardShape {
  int B_r;                            // queries of a block
  int B_c;                            // keys per CTA
  int d_head;                         // columns of a tile
  bool lanes_are_neighbours = false;  // in the sums of dQ
  bool recycles_sums = false;         // heads may have their sums of dQ in the same memory
  bool divides_groups = false;        // CTAs may divide the query heads of a group
  bool runs_slices = false;  // of heads, one after another, whose sums have the same memory
  // With runs_slices, without dropout or a variant, which go by the numbers of heads of the whole problem: kernels see the heads of a
  // slice alone.
  bool slices_are_problems = false;
  bool has_variant = false;
  // The time of a column, beside that of the SM90 family where both run: selection takes the least columns times this.
  int slowness = 1;
};

// That of a config's kernel with a variant.
constexpr BackwardShape with_variant(BackwardShape shape) {
  shape.has_variant = true;
  return shape;
}

// Queries of a part of the workspace: blocks have a multiple of it. Keys, too, where dK and dV are summed there.
inline constexpr int kQueriesOfPiece = 64;

// Floats of the sums of dQ that one warp adds at a time, which has a turn of its own.
inline constexpr int kSumsOfTurn = 1024;

// What recycled sums of dQ may take, to stay in L2 beside Q and dO, and the CTAs that run at a time on the largest device; on
// others they wait a little, or not.
inline constexpr int64_t kBytesOfRecycledSums = 32 << 20;
inline constexpr int64_t kBytesOfShortTiles = 64 << 20;  // under a left window
inline constexpr int kCtasAtATime = 132;
// A window is short where a sequence has at least so many times its keys.
inline constexpr int kWindowsOfLongSequence = 16;
// Queries of a sequence in which a variant's mask may be a short window.
inline constexpr int kLongUnderVariant = 8192;
// What the sums of a slice of heads may take.
inline constexpr int64_t kBytesOfSlice = 64 << 20;
// That add to the sums of a query head for a block of keys.
inline constexpr int kMostCtasOfBlock = 2;

// Each block of keys is compared with each other where they are sorted.
inline constexpr int kMostSortedBlocks = 4096;

}  // namespace pyflash
