// The kernels that make what a kernel with a variant takes beside what is captured, as launches find them.
#pragma once

namespace pyflash::variant {

// nullptr: no launch needs one.
struct Makers {
  void const* prepare;  // the tables of prepared fields
  void const* judge;    // the bits of a mask, and what is shown of blocks
  void const* list;     // the lists of blocks
  void const* sort;     // the order of tiles
};

// Warps that write a list, at most.
inline constexpr int kMostWarpsOfList = 8;
// Threads of a CTA that sorts tiles, and of one that judges blocks.
inline constexpr int kSortThreads = 256;
inline constexpr int kJudgingThreads = 256;

}  // namespace pyflash::variant
