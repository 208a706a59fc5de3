// A softmax in which each row decides alone whether its m grows: what becomes of its scores depends on them, and on no other row's.
// For batch_invariant, where a row's neighbours are other sequences' now and then.
#pragma once

#include <cmath>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/row_softmax.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/forward/softmax.h"
#include "cute_kernels/sm90/gemm.h"

namespace pyflash::sm90 {

using namespace cute;

// A row is compared with m before its scores are exponentiated until it has a maximum, and from its first infinite sum on. Else its
// sums tell, and m grows where they exceed what P may be. All lanes of a row agree on what it does.
template <class Element>
struct RowwiseSoftmax : Softmax<Element, true, false> {
  using Base = Softmax<Element, true, false>;
  using Base::inverse_scale_log2;
  using Base::kRows;
  using Base::kThreshold;
  using Base::limit;
  using Base::row_sum;
  using typename Base::PerRow;

  int overflowed = 0;  // a bit for each row whose sum did

  using Base::Base;

  CUTE_DEVICE void reset() {
    Base::reset();
    overflowed = 0;
  }
  // A block that nothing came before: each row looks for its own maximum.
  template <bool kFirst, bool kMasked, class AccS>
  CUTE_DEVICE bool update(AccS& acc_S, PerRow& correction, Softcap const& softcap) {
    static_assert(kFirst);
    overflowed = 0;
    return Base::template update<kFirst, kMasked>(acc_S, correction, softcap);
  }

  // A bit for each of the thread's rows that are to be compared.
  CUTE_DEVICE int rows_to_compare() const {
    int rows = overflowed;
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      rows |= int{limit(r) <= kLeastMax} << r;
    }
    return rows;
  }

  // Has m of these grow to what their scores of a block ask for, and brings l to it, and `correction`, by which O is to be rescaled.
  template <class AccS>
  CUTE_DEVICE void compare(int rows, AccS& acc_S, PerRow& correction) {
    Tensor S = rows_by_columns(acc_S);  // ((2,MMA_M),(2,V,MMA_N))
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      float const block_max = Base::max_of_row(S, r);
      if ((rows >> r & 1) != 0 && block_max > limit(r)) {
        float const before = limit(r);
        limit(r) = fmaf(kThreshold, inverse_scale_log2, block_max);
        float const factor = device::exp2((before - limit(r)) * Base::scale_log2());
        row_sum(r) *= factor;
        correction(r) *= factor;
      }
    }
  }

  // The rows whose sums of a block are infinite.
  CUTE_DEVICE int note_overflow(PerRow const& sums) {
    int rows = 0;
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      rows |= int{largest_of_quad(sums(r)) == INFINITY} << r;
    }
    overflowed |= rows;
    return rows;
  }

  // Has m grow where sums of a block are large, and brings P, l and `correction` to it.
  template <class AccS>
  CUTE_DEVICE void grow(AccS& acc_S, PerRow const& sums, PerRow& correction) {
    PerRow factors;
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      // By a power of two: 1 leaves all bits as they are.
      float const largest = largest_of_quad(sums(r));
      int const growth = largest > Base::kLargeSum ? min(device::exponent(largest), 126) : 0;
      limit(r) = fmaf(static_cast<float>(growth), inverse_scale_log2, limit(r));
      factors(r) = device::power_of_two(-growth);
      row_sum(r) = fmaf(row_sum(r), factors(r), sums(r) * factors(r));
      correction(r) *= factors(r);
    }
    Base::rescale(acc_S, factors);
  }

 private:
  CUTE_DEVICE static float largest_of_quad(float value) {
    return reduce_quad(value, [](float a, float b) { return fmaxf(a, b); });
  }
};

// P of a block, in memory while scores of some of its rows are computed again.
template <class AccS>
struct KeptP {
  static constexpr int kColumns = decltype(size(AccS{}))::value / 2;

  float volatile values[2][kColumns];

  CUTE_DEVICE explicit KeptP(AccS const& acc_S) {
    Tensor P = rows_by_columns(acc_S);  // ((2,MMA_M),(2,V,MMA_N))
    CUTE_UNROLL
    for (int i = 0; i < 2 * kColumns; ++i) {
      values[i / kColumns][i % kColumns] = P(i / kColumns, i % kColumns);
    }
  }
  // Brings back the rows without a bit in `others`.
  CUTE_DEVICE void restore(int others, AccS& acc_S) const {
    Tensor P = rows_by_columns(acc_S);  // ((2,MMA_M),(2,V,MMA_N))
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      if ((others >> r & 1) == 0) {
        CUTE_UNROLL
        for (int c = 0; c < kColumns; ++c) {
          P(r, c) = values[r][c];
        }
      }
    }
  }
};

// S of a block after the first to P, in place; m and l are up to date then. Returns whether O is to be rescaled, by `correction`.
// compute_again(): computes S again.
template <class Element, class AccS, class PerRow, class Mask, class ComputeAgain>
CUTE_DEVICE bool softmax_by_rows(RowwiseSoftmax<Element>& softmax, AccS& acc_S, PerRow& correction,
                                 Mask& mask, int n_block, bool is_masked,
                                 ComputeAgain const& compute_again) {
  Softcap const uncapped{};
  bool rescale = false;
  fill(correction, 1.f);
  if (is_masked) {
    mask.apply(acc_S, n_block);
    int const rows = softmax.rows_to_compare();
    rescale = device::any_lane(rows != 0);
    if (rescale) {
      softmax.compare(rows, acc_S, correction);
    }
  }
  PerRow sums = softmax.exponentiate_with_m(acc_S, uncapped);
  if (!softmax.are_large(sums)) {
    softmax.add(sums);
    return rescale;
  }
  if (softmax.overflow(sums)) {
    int const rows = softmax.note_overflow(sums);
    KeptP const P(acc_S);
    compute_again();
    mask.apply(acc_S, n_block);
    softmax.compare(rows, acc_S, correction);
    PerRow const sums_again = softmax.exponentiate_with_m(acc_S, uncapped);
    P.restore(rows, acc_S);
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      sums(r) = (rows >> r & 1) != 0 ? sums_again(r) : sums(r);
    }
    mask.cut_all();  // of the tile's blocks none is to take that long again
  }
  softmax.grow(acc_S, sums, correction);
  return true;
}

}  // namespace pyflash::sm90
