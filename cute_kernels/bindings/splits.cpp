#include "cute_kernels/bindings/splits.h"

#include <algorithm>
#include <array>

#include "cute_kernels/bindings/problem.h"

namespace pyflash {
namespace {

constexpr int kStepsToStart = 2;
constexpr int kStepsToMerge = 4;
constexpr int kMinSteps = 4;

int ceil_div(int a, int b) { return (a + b - 1) / b; }

int cost(int n_splits, int n_ctas, int n_key_blocks, int n_sms) {
  int const waves = ceil_div(n_ctas * n_splits, n_sms);
  int const steps = ceil_div(n_key_blocks, n_splits);
  return waves * (steps + kStepsToStart) + (n_splits > 1 ? kStepsToMerge : 0);
}

}  // namespace

int count_key_blocks(ForwardParams const& params, FlashForwardKernelConfig const& config) {
  int64_t const rows = std::min(config.B_r, params.seqlen_q);
  int64_t const in_window = rows + int64_t(params.window_left) + params.window_right;
  int64_t const all_blocks = (int64_t(params.seqlen_k) + config.B_c - 1) / config.B_c;
  // A window that starts inside of a block reaches into one more.
  return static_cast<int>(std::min(all_blocks, (in_window + config.B_c - 1) / config.B_c + 1));
}

int choose_num_splits(int64_t n_ctas, int n_key_blocks, int n_sms) {
  if (n_ctas == 0 || 5 * n_ctas >= 4 * int64_t(n_sms)) {
    return 1;
  }
  int const ctas = static_cast<int>(n_ctas);
  int const most = std::min({kMaxSplits, n_key_blocks / kMinSteps, 2 * n_sms / ctas});
  int cheapest = cost(1, ctas, n_key_blocks, n_sms);
  for (int n = 2; n <= most; ++n) {
    cheapest = std::min(cheapest, cost(n, ctas, n_key_blocks, n_sms));
  }
  int n_splits = 1;
  while (10 * int64_t(cost(n_splits, ctas, n_key_blocks, n_sms)) > 11 * int64_t(cheapest)) {
    ++n_splits;
  }
  return n_splits;
}

}  // namespace pyflash
