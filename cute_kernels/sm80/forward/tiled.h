// The TiledMMA and the TiledCopies whose thread-value layouts traits.h spells out: to look at, and to assert that these are
// the same. No kernel includes it.
#pragma once

#include <cute/tensor.hpp>

#include "cute_kernels/sm80/forward/traits.h"

namespace pyflash::sm80 {

// Whether lane -> row + 16 * column is where the first values of the lanes of the first warp are in a tile of kRows rows.
template <class Lanes, int kRows, class ThreadValueLayout>
constexpr bool are_first_values(ThreadValueLayout const& layout) {
  bool same = size(Lanes{}) == 32;
  for (int lane = 0; lane < 32; ++lane) {
    int const index = layout(lane, 0);
    same = same && Lanes{}(lane) == index % kRows + 16 * (index / kRows);
  }
  return same;
}

template <FlashForwardKernelConfig kConfig>
struct KernelTraits<kConfig>::Tiled {
  using TiledMma = TiledMMA<MMA_Atom<MmaAtom>, Layout<Shape<Int<kNWarps>, _1, _1>>,
                            Tile<Int<kRowStep>, _16, Int<kMmaK>>>;
  static_assert(size(TiledMma{}) == kNThreads);
  static_assert(are_first_values<AccLanes, kRowStep>(TiledMma{}.get_layoutC_TV()));

  using G2SThreads =
      Layout<Shape<Int<kCopyRows>, Int<kThreadsPerRow>>, Stride<Int<kThreadsPerRow>, _1>>;
  using TiledCopyG2S = decltype(make_tiled_copy(Copy_Atom<VectorCopyAtom, Element>{}, G2SThreads{},
                                                Layout<Shape<_1, Int<kVectorElements>>>{}));
  using TiledCopyQ = decltype(make_tiled_copy_A(Copy_Atom<SmemCopyAtom, Element>{}, TiledMma{}));
  using TiledCopyK = decltype(make_tiled_copy_B(Copy_Atom<SmemCopyAtom, Element>{}, TiledMma{}));
  using TiledCopyV =
      decltype(make_tiled_copy_B(Copy_Atom<SmemCopyAtomTransposed, Element>{}, TiledMma{}));
  static_assert(are_first_values<LanesQ, kRowStep>(TiledCopyQ{}.get_layoutS_TV()));
  static_assert(are_first_values<LanesK, 16>(TiledCopyK{}.get_layoutS_TV()));
  static_assert(are_first_values<LanesVt, 16>(TiledCopyV{}.get_layoutS_TV()));
};

}  // namespace pyflash::sm80
