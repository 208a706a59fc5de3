#include "cute_kernels/bindings/splits.h"

#include <algorithm>

#include "cute_kernels/bindings/problem.h"

namespace pyflash {
namespace {

constexpr int kStepsToStart = 2;
constexpr int kStepsToMerge = 4;
constexpr int kMinSteps = 4;
constexpr int kMaxWaves = 4;

int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace

int count_key_blocks(ForwardParams const& params, FlashForwardKernelConfig const& config) {
  int64_t const n_rows = std::min(config.B_r, params.seqlen_q);
  int64_t const in_window = n_rows + int64_t(params.window_left) + params.window_right;
  int64_t const all_blocks = (int64_t(params.seqlen_k) + config.B_c - 1) / config.B_c;
  // A window that starts inside of a block reaches into one more.
  return static_cast<int>(std::min(all_blocks, (in_window + config.B_c - 1) / config.B_c + 1));
}

int choose_num_splits(int64_t n_ctas, int n_key_blocks, int n_sms) {
  if (n_ctas == 0 || 5 * n_ctas >= 4 * int64_t(n_sms)) {
    return 1;
  }
  int const most = std::min(kMaxSplits, n_key_blocks / kMinSteps);
  int cheapest = n_key_blocks + kStepsToStart;
  int n_splits = 1;
  for (int waves = 1; waves <= kMaxWaves; ++waves) {
    // Of all that make so many waves, the most splits have the fewest steps.
    int const n = std::min(most, waves * n_sms / static_cast<int>(n_ctas));
    if (n < 2) {
      continue;
    }
    int const steps = ceil_div(n_key_blocks, n);
    int const cost = waves * (steps + kStepsToStart) + kStepsToMerge;
    if (cost < cheapest) {
      cheapest = cost;
      n_splits = ceil_div(n_key_blocks, steps);
    }
  }
  return n_splits;
}

}  // namespace pyflash
