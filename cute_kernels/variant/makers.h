// The kernels that make what a kernel with a variant takes beside what is captured, as launches find them.
#pragma once

namespace pyflash::variant {

// nullptr: no launch needs one.
struct Makers {
  void const* prepare;  // the tables of prepared fields
  void const* list;     // the lists of blocks
  void const* sort;     // the order of tiles
};

// Threads of a CTA that sorts tiles.
inline constexpr int kSortThreads = 256;

}  // namespace pyflash::variant
