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

// An accumulator rounded to pairs of 16-bit elements, two neighbouring tiles of it being one of the A operand of m16n8k16:
// (MMA=4,MMA_M,MMA_N) -> ((2,2),MMA_M,MMA_N/2).
template <class Element, class Acc>
CUTE_DEVICE auto as_operand_A(Acc const& acc) {
  constexpr int kM = size<1>(Acc{});
  constexpr int kK = size<2>(Acc{}) / 2;
  Tensor pairs = make_tensor<uint32_t>(Layout<Shape<Shape<_2, _2>, Int<kM>, Int<kK>>,
                                              Stride<Stride<_1, Int<2 * kM>>, _2, Int<4 * kM>>>{});
  CUTE_UNROLL
  for (int i = 0; i < size(acc) / 2; ++i) {
    pairs.data()[i] = device::pack2(acc(2 * i), acc(2 * i + 1), Element{});
  }
  return pairs;
}

}  // namespace pyflash::sm80
