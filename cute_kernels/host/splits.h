// Into how many parts the keys of a problem are split, so that a grid of few CTAs fills the GPU. The rule is a cost model
// whose unit is one CTA's step over a block of keys, about a microsecond:
//   cost(n) = waves(n) * (steps(n) + 2) + merge(n),  waves(n) = ceil(CTAs * n / slots),  steps(n) = ceil(blocks / n)
//   merge(1) = 0,  merge(n) = 3 + 0.35 n + n * elements of O / 375000: a launch, a row's splits in turn, fp32 out and in
// where the slots are the CTAs that run at a time. The cheapest number of splits is taken, the fewest where several are, of
// those that leave every split kMinSteps blocks or more. A grid that fills four slots of five without is not split.
// Splits that a cluster of CTAs merges cost next to nothing: a power of two of them, as many as the SMs have room for with a
// CTA each and 128 keys for each; 8 instead of 16 where not all clusters have SMs of their own. The model above decides where the
// largest cluster leaves two thirds of the SMs idle and splits have 512 keys, or half of them and 1024, or else 4096; and where
// CTAs share SMs without any splits. One query, 8 heads of d_head 128: clusters of 16 took, at 1k to 16k keys, 8.5, 10.3, 12.8, 16.8 and
// 27.0 us, of 8 7.4, 8.7, 11.8, 16.4 and 25.5, 17 splits merged apart 9.1, 10.7, 13.8, 17.3 and 25.2. 144 heads: 75.6 us without
// splits, 59.1 with 3.
// Measured on an H200 with one query, 8 heads of k and v, 8192 keys and d_head 128, in microseconds: 16 splits 19.4, chosen
// 16 (8: 24.9, 32: 22.0); batch 4: chosen 8, 44.9 (4: 61.2, 16: 53.1).
#pragma once

#include "cute_kernels/params.h"

namespace pyflash {

// Blocks of keys that a Q block attends, at most.
int count_key_blocks(ForwardParams const& params, int B_r, int B_c);

struct SplitProblem {
  int64_t n_ctas;  // of one pass
  int64_t n_slots;
  int n_key_blocks;
  int64_t n_outputs;  // elements of O
  int B_c = 1;
  int n_sms = 0;
  int max_cluster = 1;  // so many splits the kernel merges itself
};

// Whether clusters with so many CTAs in all each have SMs of their own. The SMs of a cluster are neighbours: on an H200, of 132 SMs,
// 8 clusters of 16 CTAs do not, nor 16 of 8, nor 32 of 4; 12 of 8 and 24 of 4 do.
inline bool clusters_fit(int64_t n_ctas, int n_sms) { return 16 * n_ctas <= 15 * int64_t(n_sms); }

int choose_num_splits(SplitProblem const& problem);

// Elements of a split's O, in fp32, that are written and read again in a microsecond.
inline constexpr double kPartialsPerMicrosecond = 375000;

// merge(n) above.
double merge_cost(int n, int64_t n_outputs);

}  // namespace pyflash
