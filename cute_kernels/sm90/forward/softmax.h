// Online softmax over the blocks of S = QK^T (Milakov and Gimelshein 2018; FlashAttention, algorithm 1). A thread holds two
// rows' worth of state; the four lanes of a quad share a row.
#pragma once

#include <cmath>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/row_softmax.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/gemm.h"
#include "cute_kernels/softcap.h"

namespace pyflash::sm90 {

using namespace cute;

// Whether one of these exceeds the limit; where that is below 0, it says so whether or not one does. Half an instruction for
// each, where a maximum takes one.
template <int kSize, class Value>
CUTE_DEVICE bool exceeds(Value const& value, float limit) {
  int largest[2] = {0, 0};  // bits, in two chains
  CUTE_UNROLL
  for (int i = 0; i < kSize; i += 2) {
    int& chain = largest[i / 2 % 2];
    chain = device::max3(chain, device::bits(value(i)), device::bits(value(i + 1)));
  }
  // NaN, whose bits are above those of infinity, does not exceed it.
  int const at_most_infinity = min(max(largest[0], largest[1]), device::bits(INFINITY));
  return at_most_infinity > device::bits(limit);
}

// Nothing becomes of scores before their exponentials.
struct Nothing {
  template <class Scores>
  CUTE_DEVICE void operator()(Scores const&, int, int) const {}
};

// Nothing is added to scores.
struct NoLine {
  CUTE_DEVICE float scale_log2(float of_softmax) const { return of_softmax; }
  // What is added to the exponents of row r.
  CUTE_DEVICE auto of_row(int, float m) const {
    return [=](int) { return -m; };
  }
};

// The maximum that exponents refer to need not be the rows' own: where kRescaleThreshold, it stays while the rows' maximum
// exceeds it by no more than 2^kThreshold, and O is not rescaled. The final division by l makes up for it.
//
// Nor need scores be compared with it first. Where kSumsTell, a block is exponentiated with m as it is, and its sums, which are
// needed anyway, tell whether m has to grow. P, in fp32 until then, is brought to the new m. Where a score exceeds m by 2^128
// that is too late: the sum is infinite, and the block's scores have to be computed once more.
template <class Element, bool kRescaleThreshold, bool kSoftcap>
struct Softmax {
  static constexpr int kRows = 2;
  static constexpr float kThreshold = kRescaleThreshold ? kMaxGrowth<Element> : 0.f;
  static constexpr bool kSumsTell = kRescaleThreshold && !kSoftcap;
  // Above it, what a thread's exponentials of a row of a block sum up to is large.
  static constexpr float kLargeSum = 1 << static_cast<int>(kThreshold);
  using PerRow = Tensor<ArrayEngine<float, kRows>, Layout<Int<kRows>>>;

  float softmax_scale;
  float inverse_scale_log2;
  PerRow limit;         // scores up to it leave m as it is: m, and the threshold above it
  PerRow max_exponent;  // m, where there is a cap
  PerRow row_sum;       // this thread's share of l
  bool has_two_terms;   // under a cap, two terms of the series did so far

  CUTE_DEVICE Softmax(float softmax_scale, float inverse_scale_log2)
      : softmax_scale(softmax_scale), inverse_scale_log2(inverse_scale_log2) {}

  // The state before any block.
  CUTE_DEVICE void reset() {
    fill(limit, float{kLeastMax});
    clear(max_exponent);
    clear(row_sum);
    has_two_terms = true;
  }

  // Row r does not exist: no score of it exceeds its limit, so that it has no part in what rows decide together.
  CUTE_DEVICE void leave_out(int r) { limit(r) = INFINITY; }

  // Whether a row has not met a score that counts. Above its m all would overflow.
  CUTE_DEVICE bool lacks_maximum() const {
    return device::any_lane(fminf(limit(0), limit(1)) <= kLeastMax);
  }
  CUTE_DEVICE bool lacks_maximum(int r) const { return limit(r) <= kLeastMax; }

  // m as an exponent of 2.
  CUTE_DEVICE float m(int r, Softcap const& softcap) const {
    return is_capped(softcap) ? max_exponent(r) : fmaf(limit(r), scale_log2(), -kThreshold);
  }

  // Turns a block of scores into P and brings m and l up to date with it. kFirst: nothing came before; where
  // kSoftcap, m is as `reset` and `leave_out` left it. kMasked: some scores are -inf. Returns whether O is to be rescaled,
  // and if so, writes by what.
  template <bool kFirst, bool kMasked, class AccS>
  CUTE_DEVICE bool update(AccS& acc_S, PerRow& correction, Softcap const& softcap) {
    Tensor S = rows_by_columns(acc_S);  // ((2,MMA_M),(2,V,MMA_N))
    if constexpr (!kFirst && !kMasked && kSoftcap) {
      if (is_capped(softcap) && has_two_terms) {
        has_two_terms = !device::any_lane(is_large(S, softcap));
        if (has_two_terms) {
          add(exponentiate(S, softcap,
                           [&](float score) { return capped_slope_of_two(softcap, score); }));
          return false;
        }
      }
    }
    bool grows = false;
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if constexpr (!kFirst) {
        // Under a cap also where scores cease to be small, of rows that exist.
        bool const is_limited = is_capped(softcap) && limit(r) != INFINITY;
        grows |= exceeds<decltype(size<1>(S))::value>(
            [&](int c) { return S(r, c); },
            is_limited ? fminf(limit(r), softcap.largest) : limit(r));
      }
    }
    // Lanes need not agree on the maximum where none exceeds its limit.
    bool const rescale = !kFirst && device::any_lane(grows);
    bool small = true;  // the scores, under a cap
    if (kFirst || rescale) {
      CUTE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        float const block_max = max_of_row(S, r);
        float const old_limit = limit(r);
        float const old_exponent = max_exponent(r);
        limit(r) = fmaxf(fmaf(kThreshold, inverse_scale_log2, block_max),
                         kFirst && !kSoftcap ? kLeastMax : limit(r));
        if (is_capped(softcap)) {
          small &= limit(r) == INFINITY || block_max <= softcap.largest;
          max_exponent(r) =
              capped_exponent(softcap, fmaf(-kThreshold, inverse_scale_log2, limit(r)));
        }
        if constexpr (kFirst) {
          row_sum(r) = 0.f;
        } else {
          correction(r) = device::exp2(is_capped(softcap) ? old_exponent - max_exponent(r)
                                                          : (old_limit - limit(r)) * scale_log2());
          row_sum(r) *= correction(r);
        }
      }
    }
    if (is_capped(softcap)) {
      CUTE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        small &= limit(r) == INFINITY || max_exponent(r) >= softcap.least_exponent;
      }
      if (small) {
        add(exponentiate(S, softcap, [&](float score) { return capped_slope(softcap, score); }));
      } else {
        cap_scores(softcap, S);
        add(exponentiate(S, softcap, [](float) { return 1.f; }));
      }
    } else {
      add(exponentiate(S, softcap, [&](float) { return scale_log2(); }));
    }
    return rescale;
  }

  // Where kSumsTell: P of a block, with m as it is; returns its sums. Then `add` takes these while they are not large, and `grow`
  // while they do not overflow. Else scores are lost, and the state is that of before. No row may lack its maximum.
  // before: what becomes of a score first. line: what is added to it, and by what it is scaled.
  template <class AccS, class Before = Nothing, class Line = NoLine>
  CUTE_DEVICE PerRow exponentiate_with_m(AccS& acc_S, Softcap const& softcap,
                                         Before const& before = {}, Line const& line = {}) const {
    Tensor S = rows_by_columns(acc_S);  // ((2,MMA_M),(2,V,MMA_N))
    return exponentiate(
        S, softcap, [&](float) { return line.scale_log2(scale_log2()); }, before, line);
  }
  CUTE_DEVICE static bool are_large(PerRow const& sums) {
    return device::any_lane(larger(sums) > kLargeSum);
  }
  CUTE_DEVICE static bool overflow(PerRow const& sums) {
    return device::any_lane(larger(sums) == INFINITY);
  }

  // Has m grow by what the sums of a block exceed 1 by, and brings P and l to it. O is to be rescaled by `correction`.
  template <class AccS>
  CUTE_DEVICE void grow(AccS& acc_S, PerRow const& sums, PerRow& correction) {
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      // By a power of two, so that m grows by an integer.
      float const largest_sum = reduce_quad(sums(r), [](float a, float b) { return fmaxf(a, b); });
      int const growth = largest_sum > 1.f ? min(device::exponent(largest_sum), 126) : 0;
      limit(r) = fmaf(static_cast<float>(growth), inverse_scale_log2, limit(r));
      correction(r) = device::power_of_two(-growth);
      row_sum(r) = fmaf(row_sum(r), correction(r), sums(r) * correction(r));
    }
    rescale(acc_S, correction);
  }

  // Whether m may have to grow, or two terms of the series do not do.
  template <class Scores>
  CUTE_DEVICE bool is_large(Scores const& S, Softcap const& softcap) const {
    bool large = false;
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      // The limits are of rows that exist.
      float const largest =
          limit(r) != INFINITY ? fminf(limit(r), softcap.largest_of_two) : INFINITY;
      auto magnitude = [&](int i) { return fmaxf(fabsf(S(r, 2 * i)), fabsf(S(r, 2 * i + 1))); };
      large |= exceeds<decltype(size<1>(S))::value / 2>(magnitude, largest);
    }
    return large;
  }

  // The maximum of the quad's scores of row r, in two chains.
  template <class Scores>
  CUTE_DEVICE static float max_of_row(Scores const& S, int r) {
    float even = S(r, 0), odd = S(r, 1);
    CUTE_UNROLL
    for (int c = 2; c < size<1>(S); c += 2) {
      even = fmaxf(even, S(r, c));
      odd = fmaxf(odd, S(r, c + 1));
    }
    return reduce_quad(fmaxf(even, odd), [](float a, float b) { return fmaxf(a, b); });
  }

  // NaN aside.
  CUTE_DEVICE static float larger(PerRow const& rows) { return fmaxf(rows(0), rows(1)); }

  // S(r, c) to 2^(slope(S(r, c)) * S(r, c) - m(r)), and the line; returns their sums.
  template <class Scores, class Slope, class Before = Nothing, class Line = NoLine>
  CUTE_DEVICE PerRow exponentiate(Scores& S, Softcap const& softcap, Slope const& slope,
                                  Before const& before = {}, Line const& line = {}) const {
    PerRow sums;
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      auto const offset = line.of_row(r, m(r, softcap));
      float sum[2] = {0.f, 0.f};
      CUTE_UNROLL
      for (int c = 0; c < size<1>(S); ++c) {
        before(S, r, c);
        S(r, c) = device::exp2(fmaf(S(r, c), slope(S(r, c)), offset(c)));
        sum[c % 2] += S(r, c);
      }
      sums(r) = sum[0] + sum[1];
    }
    return sums;
  }
  CUTE_DEVICE void add(PerRow const& sums) {
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      row_sum(r) += sums(r);
    }
  }

  CUTE_DEVICE static bool is_capped(Softcap const& softcap) {
    return kSoftcap && softcap.cap != 0.f;
  }
  CUTE_DEVICE float scale_log2() const { return softmax_scale * kLog2e; }

  // The rows of O, or of P.
  template <class Acc>
  CUTE_DEVICE static void rescale(Acc& acc, PerRow const& factor) {
    Tensor rows = rows_by_columns(acc);  // ((2,MMA_M),(2,V,MMA_K))
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      CUTE_UNROLL
      for (int c = 0; c < size<1>(rows); ++c) {
        rows(r, c) *= factor(r);
      }
    }
  }

  // O /= l; returns the rows' lse = m + ln(l). sinks: per row, a logit that enters l alone, or -inf. A row that attended
  // nothing gets O = 0 and its sink as lse. kSameBits: as every kernel with the same config does.
  template <bool kSameBits, class AccO>
  CUTE_DEVICE PerRow finalise(AccO& acc_O, PerRow const& sinks, Softcap const& softcap) const {
    PerRow lse, inverse;
    CUTE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      float sum = reduce_quad(row_sum(r), [](float a, float b) { return a + b; });
      float maximum =
          kSameBits ? device::rounded_product(m(r, softcap), kLn2) : m(r, softcap) * kLn2;
      float shrink = 1.f;  // of the terms of sum, when the sink becomes the maximum
      if (sinks(r) != -INFINITY) {
        // NOTE: a row that attended nothing has some m. A sink far below it would vanish beside it.
        maximum = sum == 0.f ? -INFINITY : maximum;
        float const new_max = fmaxf(maximum, sinks(r));
        shrink = device::exp2((maximum - new_max) * kLog2e);
        sum = sum * shrink + device::exp2((sinks(r) - new_max) * kLog2e);
        maximum = new_max;
      }
      inverse(r) = sum == 0.f ? 0.f : shrink * device::reciprocal(sum);
      float const log_sum = device::log(sum);
      lse(r) = sum == 0.f  ? -INFINITY
               : kSameBits ? device::rounded_sum(maximum, log_sum)
                           : maximum + log_sum;
    }
    rescale(acc_O, inverse);
    return lse;
  }
};

}  // namespace pyflash::sm90
