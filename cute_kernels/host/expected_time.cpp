#include "cute_kernels/host/expected_time.h"

#include <algorithm>

namespace pyflash {

double expected_time(GridShape const& shape, Costs const& costs, Problem const& problem, int n_sms,
                     int num_splits) {
  Grid const grid = make_grid(shape, problem, n_sms, num_splits);
  if (grid.n_tiles == 0) {
    return costs.launch;
  }
  bool const is_capped = problem.params.softcap.cap != 0;
  bool const is_masked = problem.params.mask().cuts_right();
  double const step = costs.step * (is_capped ? costs.capped : 1);
  double const tile = costs.tile + (is_masked ? costs.mask * step : 0);
  auto const time_of = [&](TileWork const& work) {
    return work.tiles * tile + step * ((1 - costs.rows) * work.steps + costs.rows * work.attended);
  };
  // How many times slower the CTAs of so many tiles are, which run at a time.
  auto const slower = [&](int64_t n_tiles) {
    int64_t const on_sm = (n_tiles * grid.cluster + n_sms - 1) / n_sms;
    return std::max(1.0, double(std::min<int64_t>(on_sm, shape.ctas_per_sm)) * costs.share);
  };
  int64_t const n_full = (grid.n_tiles - 1) / grid.n_slots;  // waves
  int64_t const n_last = grid.n_tiles - n_full * grid.n_slots;
  // Shorter tiles than others begin earlier than the last wave: half of its idle slots are used.
  bool const is_even = n_full == 0 || grid.longest.steps <= grid.mean.steps;
  double const last = is_even ? 1 : 0.5 + 0.5 * double(n_last) / double(grid.n_slots);
  double const waves = double(n_full) * slower(grid.n_slots) + last * slower(n_last);
  double const longest = slower(std::min(grid.n_tiles, grid.n_slots)) * time_of(grid.longest);
  double const busy = std::max(waves * time_of(grid.mean), longest);
  double const merge = num_splits > 1 ? costs.merge + num_splits * costs.split +
                                            grid.partial_megabytes * costs.partial
                                      : 0;
  return costs.launch + busy + grid.megabytes * costs.megabyte + merge;
}

}  // namespace pyflash
