// The warp-level GEMM with operands loaded from shared memory in stages, and the views that lead from the accumulator of
// one GEMM to the operand of the next.
#pragma once

#include <cute/tensor.hpp>

#include "cute_kernels/device.h"

namespace pyflash::sm80 {

using namespace cute;

// acc += A B^T. The K dimension is walked in stages of kStageSteps MMA steps; load_step(k) brings the operands of step k
// to registers. With kDoubleBuffer the loads of the next stage are issued before the MMAs of the current one.
template <int kStageSteps, bool kDoubleBuffer, class TiledMma, class Acc, class A, class B,
          class LoadStep>
CUTE_DEVICE void gemm_staged(TiledMma const& tiled_mma, Acc& acc, A const& rA, B const& rB,
                             LoadStep&& load_step) {
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
      gemm(tiled_mma, rA(_, _, k), rB(_, _, k), acc);
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
CUTE_DEVICE auto rows_by_columns(Acc&& acc) {
  auto const split = logical_divide(acc.layout(), Shape<_2>{});  // ((2,2),MMA_M,MMA_N)
  return make_tensor(acc.data(), make_layout(make_layout(get<0, 1>(split), get<1>(split)),
                                             make_layout(get<0, 0>(split), get<2>(split))));
}

// An accumulator of 16-bit elements as the A operand of m16n8k16: (MMA=4,MMA_M,MMA_N) -> ((4,2),MMA_M,MMA_N/2).
template <class P>
CUTE_DEVICE auto as_operand_A(P&& rP) {
  auto const split = logical_divide(rP.layout(), Shape<Underscore, Underscore, _2>{});
  return make_tensor(rP.data(), make_layout(make_layout(get<0>(split), get<2, 0>(split)),
                                            get<1>(split), get<2, 1>(split)));
}

// fp32 registers rounded to 16-bit ones of the same layout, two at a time.
template <class Element, class Fragment>
CUTE_DEVICE auto convert(Fragment const& source) {
  Tensor result = make_fragment_like<Element>(source);
  Tensor pairs = recast<uint32_t>(result);
  CUTE_UNROLL
  for (int i = 0; i < size(pairs); ++i) {
    pairs(i) = device::pack2(source(2 * i), source(2 * i + 1), Element{});
  }
  return result;
}

}  // namespace pyflash::sm80
