// Tiles in shared memory as TMA and the warpgroup MMAs agree on them: slabs of 64, 32 or 16 columns, 128 to 32 bytes a row, their
// 16-byte chunks permuted among 8 rows. A slab is a TMA box.
//
// Layouts are spelled out, because the compiler takes seconds to compute them anew for each kernel.
#pragma once

#include <type_traits>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/shape.h"

namespace pyflash::sm90 {

using namespace cute;

template <int kSlab>
struct Slabs {
  static_assert(kSlab == 64 || kSlab == 32 || kSlab == 16);

  using Bits = Swizzle<kSlab == 64 ? 3 : kSlab == 32 ? 2 : 1, 4, 3>;  // of bytes
  template <class Plain>
  using Swizzled = ComposedLayout<Bits, smem_ptr_flag_bits<16>, Plain>;
  // Row by row in a slab; the strides of 8 rows.
  template <int kRows>
  using RowsOfSlab = Shape<_8, Int<kRows / 8>>;
  using RowStrides = Stride<Int<kSlab>, Int<8 * kSlab>>;

  // (kRows,kSlab)
  template <int kRows>
  using OneSlab = Swizzled<Layout<Shape<RowsOfSlab<kRows>, Int<kSlab>>, Stride<RowStrides, _1>>>;
  // (kRows,kColumns), or, of several tiles, (kRows,kColumns,kTiles).
  template <int kRows, int kColumns, int... kTiles>
  using Rows = Swizzled<
      Layout<Shape<RowsOfSlab<kRows>, Shape<Int<kSlab>, Int<kColumns / kSlab>>, Int<kTiles>...>,
             Stride<RowStrides, Stride<_1, Int<kRows * kSlab>>,
                    std::enable_if_t<(kTiles > 0), Int<kRows * kColumns>>...>>>;
  // The same, transposed: (kColumns,kRows,kTiles).
  template <int kRows, int kColumns, int... kTiles>
  using Columns = Swizzled<
      Layout<Shape<Shape<Int<kSlab>, Int<kColumns / kSlab>>, RowsOfSlab<kRows>, Int<kTiles>...>,
             Stride<Stride<_1, Int<kRows * kSlab>>, RowStrides,
                    std::enable_if_t<(kTiles > 0), Int<kRows * kColumns>>...>>>;

  // The address of an element of a tile that begins at `tile`.
  template <class Layout, class... Coords>
  CUTE_DEVICE static device::SmemAddress address(device::SmemAddress tile, Layout const& layout,
                                                 Coords... coords) {
    return tile + Bits::apply(uint32_t(layout.layout_b()(coords...)) * kElementBytes);
  }
  // Where a TMA box of rows of a slab begins: it swizzles by the bits of addresses itself.
  template <class Layout, class... Coords>
  CUTE_DEVICE static device::SmemAddress of_box(device::SmemAddress tile, Layout const& layout,
                                                Coords... coords) {
    return tile + uint32_t(layout.layout_b()(coords...)) * kElementBytes;
  }
  // The address of the element so many rows and columns on in the slab, which the compiler knows, and which have no bit in common with
  // those of the first. NOTE: the swizzle makes it an exclusive or; the compiler would compute each address anew.
  CUTE_DEVICE static device::SmemAddress further(device::SmemAddress first, int rows, int columns) {
    uint32_t const bytes = (rows * kSlab + columns) * kElementBytes;
    return (first ^ Bits::apply(bytes % kSmemAlignment)) + bytes / kSmemAlignment * kSmemAlignment;
  }

  // Operands in shared memory are descriptors, whose layouts are the steps from one MMA's tile to others, (1,1,MMA_K) and
  // tiles. In units of 16 bytes.
  static constexpr int kUnit = 8;  // elements
  static constexpr int kEightRows = 8 * kSlab / kUnit;
  static constexpr auto kDescriptorLayout = kSlab == 64   ? SM90::GMMA::LayoutType::B128
                                            : kSlab == 32 ? SM90::GMMA::LayoutType::B64
                                                          : SM90::GMMA::LayoutType::B32;
  // k is along the columns.
  template <int kRows, int kColumns, int... kTiles>
  struct ByRows {
    using Tile = Slabs;
    using Steps =
        Layout<Shape<_1, _1, Shape<Int<kSlab / kMmaK>, Int<kColumns / kSlab>>, Int<kTiles>...>,
               Stride<_0, _0, Stride<Int<kMmaK / kUnit>, Int<kRows * kSlab / kUnit>>,
                      std::enable_if_t<(kTiles > 0), Int<kRows * kColumns / kUnit>>...>>;
    static constexpr int kLeadingStep = 1;  // it has no meaning
  };
  // k is along the rows. kUsed: columns of the operand.
  template <int kRows, int kColumns, int kUsed, int... kTiles>
  struct ByColumns {
    using Tile = Slabs;
    using Steps = Layout<Shape<_1, _1, Int<kRows / kMmaK>, Int<kTiles>...>,
                         Stride<_0, _0, Int<kMmaK * kSlab / kUnit>,
                                std::enable_if_t<(kTiles > 0), Int<kRows * kColumns / kUnit>>...>>;
    static constexpr int kLeadingStep = kUsed > kSlab ? kRows * kSlab / kUnit : 0;  // of slabs
  };
};

}  // namespace pyflash::sm90
