// Warpgroup GEMMs, issued and not waited for, and the views that lead from the accumulator of one to the operand of the
// next.
#pragma once

#include <cute/tensor.hpp>

#include "cute_kernels/device_sm90.h"

namespace pyflash::sm90 {

using namespace cute;

// The descriptors of an operand in shared memory, from that of the MMA tile at `data`.
template <class Traits, class Operand, class Element>
CUTE_DEVICE auto descriptors(Element* data) {
  GmmaDescriptor first;
  first.bitfield.layout_type_ = static_cast<uint8_t>(Traits::kDescriptorLayout);
  first.bitfield.start_address_ = static_cast<uint16_t>(cast_smem_ptr_to_uint(data) >> 4);
  first.bitfield.leading_byte_offset_ = Operand::kLeadingStep;
  first.bitfield.stride_byte_offset_ = Traits::kEightRows;
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
    mma.call(tA(_, _0{}, k), tB(_, _0{}, k), acc_of_mma);
    mma.accumulate_ = GMMA::ScaleOut::One;
  }
  device::mma_commit();
}

// Where a thread's values of an accumulator are: (row, column), partitioned like it.
template <class Traits, int kColumns>
CUTE_DEVICE auto coords_of(int thread) {  // (MMA,MMA_M,MMA_N)
  return make_tensor(make_inttuple_iter(Traits::first_coord(thread)),
                     typename Traits::template AccCoords<kColumns>{});
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
