#include "cute_kernels/host/splits.h"

#include <algorithm>
#include <utility>

#include "cute_kernels/host/problem.h"
#include "cute_kernels/sm90/shape.h"

namespace pyflash {
namespace {

constexpr int kMinSteps = 4;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

double cost(SplitProblem const& problem, int n) {
  int64_t const waves = ceil_div(problem.n_ctas * n, problem.n_slots);
  double const steps = static_cast<double>(waves * (ceil_div(problem.n_key_blocks, n) + 2));
  return steps + merge_cost(n, problem.n_outputs);
}

// The largest cluster that pays, and whether it is as fast as splits that are merged apart. Those fill the GPU better, which pays
// for the merge where the largest cluster leaves SMs idle and splits are long.
std::pair<int, bool> splits_of_cluster(SplitProblem const& problem) {
  constexpr int kMinKeys = 128;
  int const n_keys = problem.n_key_blocks * problem.B_c;
  int64_t const n_sms = problem.n_sms;
  int n = 1;
  while (2 * n <= problem.max_cluster && 2 * n * problem.n_ctas <= n_sms &&
         2 * n * kMinKeys <= n_keys) {
    n *= 2;
  }
  if (n < problem.max_cluster) {
    return {n, n > 1 || problem.n_ctas <= n_sms};
  }
  if (n > sm90::kPortableCluster && !clusters_fit(n * problem.n_ctas, problem.n_sms)) {
    n /= 2;
  }
  int64_t const n_ctas = n * problem.n_ctas;
  int const longest = 3 * n_ctas < n_sms ? 512 : 2 * n_ctas < n_sms ? 1024 : 4096;
  return {n, n_keys <= n * longest};
}

}  // namespace

double merge_cost(int n, int64_t n_outputs) {
  return n == 1 ? 0 : 3 + 0.35 * n + static_cast<double>(n * n_outputs) / kPartialsPerMicrosecond;
}

int count_key_blocks(ForwardParams const& params, int B_r, int B_c) {
  int64_t const n_rows = std::min(B_r, params.seqlen_q);
  int64_t const in_window = n_rows + int64_t(params.window_left) + params.window_right;
  int64_t const all_blocks = (int64_t(params.seqlen_k) + B_c - 1) / B_c;
  // A window that starts inside of a block reaches into one more.
  return static_cast<int>(std::min(all_blocks, (in_window + B_c - 1) / B_c + 1));
}

int choose_num_splits(SplitProblem const& problem) {
  if (problem.n_ctas == 0 || 5 * problem.n_ctas >= 4 * problem.n_slots) {
    return 1;
  }
  if (problem.max_cluster > 1) {
    if (auto const [n, suffices] = splits_of_cluster(problem); suffices) {
      return n;
    }
  }
  int const most = std::min(kMaxSplits, problem.n_key_blocks / kMinSteps);
  int cheapest = 1;
  double least = cost(problem, cheapest);
  for (int n = 2; n <= most; ++n) {
    if (double const of_n = cost(problem, n); of_n < least) {
      least = of_n;
      cheapest = n;
    }
  }
  return cheapest;
}

}  // namespace pyflash
