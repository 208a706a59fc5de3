// Warpgroup GEMMs, issued and not waited for, and the views that lead from the accumulator of one to the operand of the
// next.
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/shape.h"

namespace pyflash::sm90 {

using namespace cute;

// A thread's values: of an A operand in registers, ((2,2,2),1,MMA_K), and of accumulators of 64 rows, ((2,2,V),1,1): two
// neighbours, of two rows 8 apart, in every 8 columns; and where these are, from the first.
template <int kColumns>
using FragmentA =
    Layout<Shape<Shape<_2, _2, _2>, _1, Int<kColumns / kMmaK>>, Stride<Stride<_1, _2, _4>, _0, _8>>;
template <int kColumns>
using AccShape = Shape<Shape<_2, _2, Int<kColumns / 8>>, _1, _1>;
template <int kColumns>
using Accumulator = Layout<AccShape<kColumns>, Stride<Stride<_1, _2, _4>, _0, _0>>;
template <int kColumns>
using AccCoords = Layout<AccShape<kColumns>,
                         Stride<Stride<E<1>, ScaledBasis<_8, 0>, ScaledBasis<_8, 1>>, _0, _0>>;
// The first value's (row, column) of a thread of the warpgroup.
CUTE_HOST_DEVICE constexpr auto first_coord(int thread) {
  return make_coord(thread / 32 * 16 + thread % 32 / 4, thread % 4 * 2);
}

// The descriptors of an operand in shared memory, from that of the MMA tile at `data`.
template <class Operand, class Element>
CUTE_DEVICE auto descriptors(Element* data) {
  using Slabs = typename Operand::Tile;
  GmmaDescriptor first;
  first.bitfield.layout_type_ = static_cast<uint8_t>(Slabs::kDescriptorLayout);
  first.bitfield.start_address_ = static_cast<uint16_t>(cast_smem_ptr_to_uint(data) >> 4);
  first.bitfield.leading_byte_offset_ = Operand::kLeadingStep;
  first.bitfield.stride_byte_offset_ = Slabs::kEightRows;
  return make_tensor(SM90::GMMA::DescriptorIterator{first}, typename Operand::Steps{});
}

// acc = A B^T, or acc += A B^T, by MMAs of all of acc, as one commit group. acc, and A where it lives in registers, must not be touched until the
// group has been waited for.
template <class Mma, class A, class B, class Acc>
CUTE_DEVICE void gemm_async(Mma mma, A const& tA, B const& tB, Acc& acc, bool accumulate) {
  Tensor acc_of_mma = acc(_, _0{}, _0{});
  warpgroup_fence_operand(acc);
  mma.accumulate_ = accumulate ? GMMA::ScaleOut::One : GMMA::ScaleOut::Zero;
  device::mma_fence();
  CUTE_UNROLL
  for (int k = 0; k < size<2>(tA); ++k) {
    mma_unpack(mma, acc_of_mma, tA(_, _0{}, k), tB(_, _0{}, k), acc_of_mma);
    mma.accumulate_ = GMMA::ScaleOut::One;
  }
  device::mma_commit();
}

// The same of operands whose k is in two parts: the first of A's is along B, the rest along B2.
template <class Mma, class A, class B, class B2, class Acc>
CUTE_DEVICE void gemm_async(Mma mma, A const& tA, B const& tB, B2 const& tB2, Acc& acc,
                            bool accumulate) {
  Tensor acc_of_mma = acc(_, _0{}, _0{});
  constexpr int kFirst = decltype(size<2>(tB))::value;
  static_assert(decltype(size<2>(tA))::value == kFirst + decltype(size<2>(tB2))::value);
  warpgroup_fence_operand(acc);
  mma.accumulate_ = accumulate ? GMMA::ScaleOut::One : GMMA::ScaleOut::Zero;
  device::mma_fence();
  CUTE_UNROLL
  for (int k = 0; k < size<2>(tB); ++k) {
    mma_unpack(mma, acc_of_mma, tA(_, _0{}, k), tB(_, _0{}, k), acc_of_mma);
    mma.accumulate_ = GMMA::ScaleOut::One;
  }
  CUTE_UNROLL
  for (int k = 0; k < size<2>(tB2); ++k) {
    mma_unpack(mma, acc_of_mma, tA(_, _0{}, kFirst + k), tB2(_, _0{}, k), acc_of_mma);
  }
  device::mma_commit();
}

// Where a thread's values of an accumulator are: (row, column), partitioned like it.
template <int kColumns>
CUTE_DEVICE auto coords_of(int thread) {  // (MMA,MMA_M,MMA_N)
  return make_tensor(make_inttuple_iter(first_coord(thread)), AccCoords<kColumns>{});
}

// Waits until at most the kPending newest groups are in flight; acc is that of an older one.
template <int kPending, class Acc>
CUTE_DEVICE void gemm_wait(Acc& acc) {
  device::mma_wait<kPending>();
  warpgroup_fence_operand(acc);
}

// An accumulator by rows and columns: ((2,2,V),MMA_M,MMA_N) -> ((2,MMA_M),(2,V,MMA_N)).
template <class Acc>
CUTE_DEVICE auto rows_by_columns(Acc&& acc) {
  auto const l = acc.layout();
  return make_tensor(acc.data(), make_layout(make_layout(get<0, 1>(l), get<1>(l)),
                                             make_layout(get<0, 0>(l), get<0, 2>(l), get<2>(l))));
}

// The accumulator of QK^T, rounded to Element, as the A operand of PV: its registers are in the same order.
template <class Element, class OperandP, class AccS>
CUTE_DEVICE void convert_P(AccS const& acc_S, OperandP& tOrP) {
  device::at(device::Site::P_convert);
  Tensor pairs = recast<uint32_t>(tOrP);
  CUTE_UNROLL
  for (int i = 0; i < size(pairs); ++i) {
    pairs(i) = device::pack2(acc_S(2 * i), acc_S(2 * i + 1), Element{});
  }
}

}  // namespace pyflash::sm90
