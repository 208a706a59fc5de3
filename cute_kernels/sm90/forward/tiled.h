// The shared-memory layouts by tile_to_shape and the TiledMMAs whose fragments and descriptors slabs.h and gemm.h spell out: to look
// at, and to assert that these are the same. No kernel includes it.
#pragma once

#include <type_traits>
#include <utility>

#include <cute/tensor.hpp>

#include "cute_kernels/sm90/forward/traits.h"

namespace pyflash::sm90 {

// Whether two layouts, swizzled or not, map every index to the same: what is left of them without modes of one element, and
// with neighbours joined, is the same type.
template <class A, class B>
constexpr bool are_same(A const& a, B const& b) {
  if constexpr (is_composed_layout<A>::value && is_composed_layout<B>::value) {
    return std::is_same_v<decltype(a.layout_a()), decltype(b.layout_a())> &&
           are_same(a.layout_b(), b.layout_b());
  } else {
    return std::is_same_v<decltype(coalesce(a)), decltype(coalesce(b))>;
  }
}

// Whether what a thread holds of an accumulator is where the coordinates of gemm.h say.
template <class Traits, class TiledMma, int kColumns>
constexpr bool are_coords_of(TiledMma const& mma) {
  constexpr auto kIdentity = make_identity_tensor(Shape<Int<Traits::kMmaM>, Int<kColumns>>{});
  using Coords = decltype(mma.get_slice(0).partition_C(kIdentity).layout());
  bool same = std::is_same_v<std::remove_cvref_t<Coords>, AccCoords<kColumns>>;
  for (int thread = 0; thread < kWarpgroup; ++thread) {
    auto const first = mma.get_slice(thread).partition_C(kIdentity)(0);
    auto const stated = first_coord(thread);
    same = same && get<0>(first) == get<0>(stated) && get<1>(first) == get<1>(stated);
  }
  return same;
}

template <FlashForwardSm90Config kConfig>
struct KernelTraits<kConfig>::Tiled {
  using TiledMmaQK = decltype(make_tiled_mma(MMA_Atom<MmaQK>{}));
  using TiledMmaPV = decltype(make_tiled_mma(MMA_Atom<MmaPV>{}));
  static_assert(size(TiledMmaQK{}) == kWarpgroup && size(TiledMmaPV{}) == kWarpgroup);

  using RowMajorAtom = std::conditional_t<kSlab == 64, GMMA::Layout_K_SW128_Atom<Element>,
                                          GMMA::Layout_K_SW64_Atom<Element>>;
  using TransposedAtom = std::conditional_t<kSlab == 64, GMMA::Layout_MN_SW128_Atom<Element>,
                                            GMMA::Layout_MN_SW64_Atom<Element>>;
  template <class Shape>
  using RowMajor = decltype(tile_to_shape(RowMajorAtom{}, Shape{}));
  using LayoutQ = RowMajor<Shape<Int<kMmaM>, Int<kHeadDim>, Int<kNConsumers>>>;
  using LayoutKV = RowMajor<Shape<Int<kBlockN>, Int<kHeadDim>, Int<kStages>>>;
  using LayoutVt = decltype(tile_to_shape(
      TransposedAtom{}, Shape<Int<kHeadDim>, Int<kBlockN>, Int<kStages>>{}, Step<_2, _1, _3>{}));
  static_assert(are_same(LayoutQ{}, SmemLayoutQ{}) && are_same(LayoutKV{}, SmemLayoutKV{}));
  static_assert(are_same(LayoutVt{}, SmemLayoutVt{}));
  static_assert(are_same(RowMajor<Shape<Int<kWarpRows>, Int<kSlab>>>{}, SmemLayoutO{}));

  // What the MMAs' operands are of tensors in shared memory.
  template <class Layout>
  using Smem = decltype(make_tensor(make_smem_ptr(static_cast<Element*>(nullptr)), Layout{}));
  using FragmentQ = decltype(TiledMmaQK{}.get_slice(0).make_fragment_A(
      TiledMmaQK{}.get_slice(0).partition_A(std::declval<Smem<LayoutQ>>()(_, _, 0))));
  using FragmentK = decltype(TiledMmaQK{}.get_slice(0).make_fragment_B(
      TiledMmaQK{}.get_slice(0).partition_B(std::declval<Smem<LayoutKV>>())));
  using FragmentVt = decltype(TiledMmaPV{}.get_slice(0).make_fragment_B(
      TiledMmaPV{}.get_slice(0).partition_B(std::declval<Smem<LayoutVt>>())));
  template <class Fragment>
  static constexpr typename Fragment::layout_type kLayoutOf{};
  static_assert(are_same(kLayoutOf<FragmentQ>, typename OperandQ::Steps{}));
  static_assert(are_same(kLayoutOf<FragmentK>, typename OperandK::Steps{}));
  static_assert(are_same(kLayoutOf<FragmentVt>, typename OperandV::Steps{}));

  using ShapeS = Shape<Int<kMmaM>, Int<kBlockN>>;
  using ShapeO = Shape<Int<kMmaM>, Int<kHeadDim>>;
  template <class Mma, class Shape>
  using AccumulatorOf = decltype(partition_fragment_C(Mma{}, Shape{}).layout());
  static_assert(are_same(AccumulatorOf<TiledMmaQK, ShapeS>{}, Accumulator<kBlockN>{}));
  static_assert(are_same(AccumulatorOf<TiledMmaPV, ShapeO>{}, Accumulator<kHeadDim>{}));
  static_assert(are_same(make_layout(decltype(partition_shape_A(TiledMmaPV{}, ShapeS{})){}),
                         FragmentA<kBlockN>{}));
  static_assert(are_coords_of<KernelTraits, TiledMmaQK, kBlockN>(TiledMmaQK{}));
  static_assert(are_coords_of<KernelTraits, TiledMmaPV, kHeadDim>(TiledMmaPV{}));
};

}  // namespace pyflash::sm90
