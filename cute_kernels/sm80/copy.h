// One thread's part of the copies between global memory, shared memory and registers.
#pragma once

#include <cute/arch/util.hpp>
#include <cute/swizzle_layout.hpp>
#include <cute/tensor_impl.hpp>

#include "cute_kernels/common/sequence.h"
#include "cute_kernels/common/tensor_strides.h"
#include "cute_kernels/device.h"

namespace pyflash::sm80 {

using namespace cute;

struct Coord {
  int row;
  int column;
};

// A row in global memory: its first element. Zeros stand for one that does not exist, whose address nobody reads.
template <class Element>
struct SourceRow {
  Element const* first;
  bool exists;
};

// What of a block there is in global memory.
struct Extent {
  int rows;
  int columns;
};

// One head of one sequence as a matrix, (rows,columns).
template <class Element>
CUTE_DEVICE auto head_matrix(Element* first, TensorStrides const& strides, Rows const& rows) {
  return make_tensor(make_gmem_ptr(first), make_shape(rows.length, int{}),
                     make_stride(strides.row, _1{}));
}

// Where a layout of lanes, lane -> row + 16 * column, has this one, rows counted from first_row.
template <class Lanes>
CUTE_DEVICE Coord lane_coord(int first_row = 0) {
  int const index = Lanes{}(device::thread_idx() % 32);
  return {first_row + index % 16, index / 16};
}

// One instruction of a copy atom.
template <class CopyAtom, class... Arguments>
CUTE_DEVICE void issue(Arguments&&... arguments) {
  cute::detail::CallCOPY<CopyAtom>{}(static_cast<Arguments&&>(arguments)...);
}

template <class Value, class Element>
CUTE_DEVICE auto& as(Element& first) {
  using Result = std::conditional_t<std::is_const_v<Element>, Value const, Value>;
  return reinterpret_cast<Result&>(first);
}

// The bits of an offset that the layout's swizzle changes.
template <class SmemLayout>
inline constexpr int kSwizzledBits = 0;
template <int kBits, int kBase, int kShift, class Offset, class Plain>
inline constexpr int kSwizzledBits<ComposedLayout<Swizzle<kBits, kBase, kShift>, Offset, Plain>> =
    ((1 << kBits) - 1) << kBase;

// The offsets in a block of shared memory that a thread accesses: of its first coordinate, whose column is below kColumnStep,
// and of those that lie steps of kRowStep and kColumnStep further.
//
// A swizzle is linear over bits: that of a sum without carries is the XOR of the swizzles. So a step is one XOR, in the bits
// that the swizzle changes, and a constant beside them, which becomes part of the instruction.
template <class SmemLayout, int kRowStep, int kColumnStep>
struct ThreadOffsets {
  static_assert(kRowStep % 8 == 0, "the swizzle permutes within 8 rows");
  int first;

  CUTE_DEVICE explicit ThreadOffsets(Coord const& coord)
      : first(SmemLayout{}(coord.row, coord.column)) {}

  CUTE_DEVICE int operator()(int rows, int columns) const {
    constexpr int kMask = kSwizzledBits<SmemLayout>;
    int const step = SmemLayout{}(rows * kRowStep, columns * kColumnStep);
    return (first ^ (step & kMask)) + (step & ~kMask);
  }
};

// The part of a thread in the copies of blocks of kRows rows between global and shared memory, 16 bytes at a time: those of
// coordinate `first` and of the steps from there, (CPY_M,CPY_K).
template <class Traits, int kRows>
struct BlockCopy {
  using Element = typename Traits::Element;
  using Vector = typename Traits::Vector;
  using SmemLayout = typename Traits::template SmemLayout<kRows>;
  using Steps = typename Traits::template CopySteps<kRows>;
  static constexpr int kStepsM = get<0>(Steps{});
  static constexpr int kStepsK = get<1>(Steps{});

  Coord first;
  ThreadOffsets<SmemLayout, Traits::kCopyRows, Traits::kSwizzleColumns> smem_offsets;

  CUTE_DEVICE BlockCopy()
      : first{device::thread_idx() / Traits::kThreadsPerRow,
              device::thread_idx() % Traits::kThreadsPerRow * Traits::kVectorElements},
        smem_offsets(first) {}

  CUTE_DEVICE int row(int m) const { return first.row + m * Traits::kCopyRows; }
  CUTE_DEVICE int column(int k) const { return first.column + k * Traits::kSwizzleColumns; }

  // The first elements of this thread's vectors in the blocks of a matrix: (CPY_M,CPY_K,n_blocks).
  template <class Matrix>
  CUTE_DEVICE auto partition(Matrix const& matrix) const {
    int64_t const stride = get<0>(matrix.stride());
    return make_tensor(make_gmem_ptr(&matrix(first.row, first.column)),
                       make_layout(make_shape(Int<kStepsM>{}, Int<kStepsK>{}, int{}),
                                   make_stride(Traits::kCopyRows * stride,
                                               Int<Traits::kSwizzleColumns>{}, kRows * stride)));
  }

  // Copies a block, (CPY_M,CPY_K), to shared memory, asynchronously or through registers. With kRagged, rows outside of
  // `extent` are filled with zeros and their global memory is not touched; without, every row is inside.
  // kPredicatedColumns is the same for columns.
  template <bool kRagged, bool kPredicatedColumns, class Source>
  CUTE_DEVICE void g2s(Source const& source, Element* block, Extent const& extent) const {
    Vector in_flight[kStepsM][kStepsK];  // unused by asynchronous copies
    CUTE_UNROLL
    for (int k = 0; k < kStepsK; ++k) {
      bool const column_exists = !kPredicatedColumns || column(k) < extent.columns;
      CUTE_UNROLL
      for (int m = 0; m < kStepsM; ++m) {
        bool const exists = column_exists && (!kRagged || row(m) < extent.rows);
        auto const& vector = as<Vector>(source(m, k));
        Vector& destination = as<Vector>(block[smem_offsets(m, k)]);
        if constexpr (!Traits::kAsyncCopy) {
          in_flight[m][k] = Vector{};
          if (exists) {
            issue<typename Traits::VectorCopyAtom>(vector, in_flight[m][k]);
          }
        } else if constexpr (kRagged || kPredicatedColumns) {
          issue<typename Traits::AsyncCopyAtomOrZeros>(vector, destination, exists);
        } else {
          issue<typename Traits::AsyncCopyAtom>(vector, destination);
        }
      }
    }
    store_in_flight(in_flight, block);
  }

  // Vectors that came through registers to shared memory.
  CUTE_DEVICE void store_in_flight(Vector const (&in_flight)[kStepsM][kStepsK],
                                   Element* block) const {
    if constexpr (!Traits::kAsyncCopy) {
      CUTE_UNROLL
      for (int k = 0; k < kStepsK; ++k) {
        CUTE_UNROLL
        for (int m = 0; m < kStepsM; ++m) {
          issue<typename Traits::VectorCopyAtom>(in_flight[m][k],
                                                 as<Vector>(block[smem_offsets(m, k)]));
        }
      }
    }
  }

  // Copies a block as g2s does, of rows that may lie anywhere: row_at(row of the block) is a SourceRow.
  template <bool kPredicatedColumns, class RowAt>
  CUTE_DEVICE void g2s_rows(RowAt const& row_at, Element* block, int n_columns) const {
    Vector in_flight[kStepsM][kStepsK];  // unused by asynchronous copies
    CUTE_UNROLL
    for (int m = 0; m < kStepsM; ++m) {
      SourceRow<Element> const source = row_at(row(m));
      CUTE_UNROLL
      for (int k = 0; k < kStepsK; ++k) {
        bool const exists = source.exists && (!kPredicatedColumns || column(k) < n_columns);
        auto const& vector = as<Vector>(source.first[column(k)]);
        if constexpr (Traits::kAsyncCopy) {
          issue<typename Traits::AsyncCopyAtomOrZeros>(
              vector, as<Vector>(block[smem_offsets(m, k)]), exists);
        } else {
          in_flight[m][k] = Vector{};
          if (exists) {
            issue<typename Traits::VectorCopyAtom>(vector, in_flight[m][k]);
          }
        }
      }
    }
    store_in_flight(in_flight, block);
  }

  // Copies what of a block is inside of `extent` to global memory, (CPY_M,CPY_K).
  template <class Destination>
  CUTE_DEVICE void s2g(Element const* block, Destination&& destination,
                       Extent const& extent) const {
    CUTE_UNROLL
    for (int m = 0; m < kStepsM; ++m) {
      CUTE_UNROLL
      for (int k = 0; k < kStepsK; ++k) {
        if (row(m) < extent.rows && column(k) < extent.columns) {
          issue<typename Traits::VectorCopyAtom>(as<Vector>(block[smem_offsets(m, k)]),
                                                 as<Vector>(destination(m, k)));
        } else {
          device::leave_out();
        }
      }
    }
  }
};

// Loads the tiles of step k of a GEMM's K dimension to the registers of operand A, a tile of 16 x 16 at a time. offsets: of
// this lane's rows in the block.
template <class LdmatrixAtom, class Fragment, class Element, class Offsets>
CUTE_DEVICE void load_A(Fragment& rA, Element const* block, Offsets const& offsets, int k) {
  CUTE_UNROLL
  for (int m = 0; m < size<1>(Fragment{}); ++m) {
    issue<LdmatrixAtom>(as<uint128_t>(block[offsets(m, k)]), rA(0, m, k), rA(1, m, k), rA(2, m, k),
                        rA(3, m, k));
  }
}

// The same for operand B, whose tiles of 8 x 16 come in pairs.
template <class LdmatrixAtom, class Fragment, class Element, class Offsets>
CUTE_DEVICE void load_B(Fragment& rB, Element const* block, Offsets const& offsets, int k) {
  CUTE_UNROLL
  for (int n = 0; n < size<1>(Fragment{}); n += 2) {
    issue<LdmatrixAtom>(as<uint128_t>(block[offsets(n / 2, k)]), rB(0, n, k), rB(1, n, k),
                        rB(0, n + 1, k), rB(1, n + 1, k));
  }
}

// Stores an accumulator packed by as_operand_A, whose first row and column are `first`, to a block of shared memory. kColumnStep: from
// two of its tiles of 8 columns to the next two.
template <class Traits, int kColumnStep = 16, class Packed, class Element>
CUTE_DEVICE void store_packed(Packed const& pairs, Coord const& first, Element* block) {
  ThreadOffsets<typename Traits::SmemLayoutO, 8, 8> const offsets(first);
  CUTE_UNROLL
  for (int k = 0; k < size<2>(pairs); ++k) {
    CUTE_UNROLL
    for (int m = 0; m < size<1>(pairs); ++m) {
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        int const rows = i % 2 + m * (Traits::kRowStep / 8);
        issue<typename Traits::SmemCopyAtomO>(
            pairs(i, m, k), as<uint32_t>(block[offsets(rows, kColumnStep / 8 * k + i / 2)]));
      }
    }
  }
}

// Stores what of an accumulator is inside of `extent` as rows of extent.columns, row-major, two columns at a time. It comes
// by rows and columns, whose places in the block are `first` and, from there, Rows and Columns.
template <class Rows, class Columns, class Acc>
CUTE_DEVICE void store_partial(Acc const& acc, Coord const& first, float* base,
                               Extent const& extent) {
  CUTE_UNROLL
  for (int c = 0; c < size<1>(acc); c += 2) {
    int const column = first.column + Columns{}(c);
    CUTE_UNROLL
    for (int r = 0; r < size<0>(acc); ++r) {
      int const row = first.row + Rows{}(r);
      if (row < extent.rows && column < extent.columns) {
        float* const address = base + int64_t(row) * extent.columns + column;
        device::store(reinterpret_cast<float2*>(address), float2{acc(r, c), acc(r, c + 1)});
      }
    }
  }
}

}  // namespace pyflash::sm80
