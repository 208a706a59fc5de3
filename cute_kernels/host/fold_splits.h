// Folds the parts that splits at fixed keys left, as cute_kernels/merge_splits.cu does, for the emulator.
#pragma once

#include <cmath>
#include <cstdint>

#include "cute_kernels/common/fold.h"
#include "cute_kernels/forward.h"
#include "cute_kernels/host/float16.h"
#include "cute_kernels/host/merge_shares.h"

namespace pyflash {

struct FoldMathOfHost {
  static float exp(float x) { return std::exp(x); }
  static float log(float x) { return std::log(x); }
  static float product(float a, float b) { return a * b; }
  static float fma(float a, float b, float c) { return std::fma(a, b, c); }
};

template <class Element>
void fold_splits_of(Forward::Params const& params) {
  int const seqlen = params.q_sequences().tensor_rows();
  int64_t const n_rows = params.lse_strides.split;
  for (int64_t n = 0; n < n_rows; ++n) {
    int64_t const batch = n / seqlen / params.heads, head = n / seqlen % params.heads;
    int64_t const row = n % seqlen;
    Element* const to = static_cast<Element*>(params.o) + batch * params.o_strides.batch +
                        head * params.o_strides.head + row * params.o_strides.row;
    Fold<FoldMathOfHost> fold;
    std::vector<float> o(params.d_head);
    for (int split = params.num_splits - 1; split >= 0; --split) {
      int64_t const part = split * n_rows + n;
      auto const weights = fold.add(params.lse_partial[part]);
      for (int column = 0; column < params.d_head; ++column) {
        o[column] = weights.of(o[column], params.o_partial[part * params.d_head + column]);
      }
    }
    float const factor = fold.finish(sink_of<Element>(params, head, row));
    for (int column = 0; column < params.d_head; ++column) {
      to[column] = Element(FoldMathOfHost::product(o[column], factor));
    }
    params.lse[n] = fold.lse();
  }
}

inline void fold_splits_on_host(Forward::Params const& params, DType dtype) {
  if (dtype == DType::FP16) {
    fold_splits_of<Float16>(params);
  } else {
    fold_splits_of<BFloat16>(params);
  }
}

}  // namespace pyflash
