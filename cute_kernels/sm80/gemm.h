// The warp-level GEMM with operands loaded from shared memory in stages, and what leads from the accumulator of one GEMM to
// the operand of the next.
#pragma once

#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/tensor_impl.hpp>

#include "cute_kernels/device.h"

namespace pyflash::sm80 {

using namespace cute;

// acc += A B^T for step k of the K dimension. Every other column of tiles is walked upwards: neighbours share an operand.
template <class MmaAtom, class Acc, class A, class B>
CUTE_DEVICE void gemm_step(Acc& acc, A const& rA, B const& rB, int k) {
  constexpr int kTilesM = size<1>(Acc{});
  CUTE_UNROLL
  for (int n = 0; n < size<2>(Acc{}); ++n) {
    CUTE_UNROLL
    for (int i = 0; i < kTilesM; ++i) {
      int const m = n % 2 ? kTilesM - 1 - i : i;
      Tensor tile = acc(_, m, n);  // (MMA)
      mma_unpack(MMA_Traits<MmaAtom>{}, tile, rA(_, m, k), rB(_, n, k), tile);
    }
  }
}

// acc += A B^T. The K dimension is walked in stages of kStageSteps MMA steps; load_step(k) brings the operands of step k
// to registers. With kDoubleBuffer the loads of the next stage are issued before the MMAs of the current one.
template <class MmaAtom, int kStageSteps, bool kDoubleBuffer, class Acc, class A, class B,
          class LoadStep>
CUTE_DEVICE void gemm_staged(Acc& acc, A const& rA, B const& rB, LoadStep&& load_step) {
  constexpr int kStages = size<2>(B{}) / kStageSteps;
  auto load_stage = [&](int stage) {
    CUTE_UNROLL
    for (int k = 0; k < kStageSteps; ++k) {
      load_step(stage * kStageSteps + k);
    }
  };
  load_stage(0);
  CUTE_UNROLL
  for (int stage = 0; stage < kStages; ++stage) {
    if constexpr (kDoubleBuffer) {
      if (stage + 1 < kStages) {
        load_stage(stage + 1);
      }
    }
    CUTE_UNROLL
    for (int k = stage * kStageSteps; k < (stage + 1) * kStageSteps; ++k) {
      gemm_step<MmaAtom>(acc, rA, rB, k);
    }
    if constexpr (!kDoubleBuffer) {
      if (stage + 1 < kStages) {
        load_stage(stage + 1);
      }
    }
  }
}

// An accumulator by rows and columns: (MMA=4,MMA_M,MMA_N) -> ((2,MMA_M),(2,MMA_N)).
template <class Acc>
CUTE_DEVICE auto rows_by_columns(Acc& acc) {
  constexpr int kM = size<1>(Acc{});
  constexpr int kN = size<2>(Acc{});
  return make_tensor(acc.data(), Layout<Shape<Shape<_2, Int<kM>>, Shape<_2, Int<kN>>>,
                                        Stride<Stride<_2, _4>, Stride<_1, Int<4 * kM>>>>{});
}

// An accumulator as the A operand of m16n8k16, which has pairs of 16-bit elements and of which a tile is two neighbouring
// ones of the accumulator: (MMA=4,MMA_M,MMA_N) -> ((2,2),MMA_M,MMA_N/2).
template <class Acc, int kM = size<1>(Acc{}), int kK = size<2>(Acc{}) / 2>
using OperandOf = Layout<Shape<Shape<_2, _2>, Int<kM>, Int<kK>>,
                         Stride<Stride<_1, Int<2 * kM>>, _2, Int<4 * kM>>>;

// Rounds the columns that are step k of the operand.
template <class Element, class Acc, class Operand>
CUTE_DEVICE void pack_step(Acc const& acc, Operand& operand, int k) {
  constexpr int kPairs = 4 * size<1>(Acc{});
  CUTE_UNROLL
  for (int i = kPairs * k; i < kPairs * (k + 1); ++i) {
    operand.data()[i] = device::pack2(acc(2 * i), acc(2 * i + 1), Element{});
  }
}

template <class Element, class Acc>
CUTE_DEVICE auto as_operand_A(Acc const& acc) {
  Tensor operand = make_tensor<uint32_t>(OperandOf<Acc>{});
  CUTE_UNROLL
  for (int k = 0; k < size<2>(operand); ++k) {
    pack_step<Element>(acc, operand, k);
  }
  return operand;
}

}  // namespace pyflash::sm80
