#include "cute_kernels/host/expected_time.h"

#include <cmath>

#include "cute_kernels/host/splits.h"

namespace pyflash {
namespace {

double merge_time(Grid const& grid, Costs const& costs, int num_splits) {
  if (num_splits == 1) {
    return 0;
  }
  double const n_outputs = grid.bytes_of_rows() / 4;
  double const partial = grid.cluster() > 1 ? 0 : n_outputs / kPartialsPerMicrosecond;
  return costs.merge + num_splits * (costs.split + partial);
}

double cube(double x) { return x * x * x; }

}  // namespace

double expected_time(GridShape const& shape, Costs const& costs, ForwardParams const& params,
                     int n_sms, int num_splits) {
  Grid const grid(shape, params, n_sms, num_splits);
  if (grid.is_empty()) {
    return costs.launch;
  }
  Load const busiest = grid.busiest();
  double const step = costs.step * (params.softcap.cap != 0 ? costs.capped : 1);
  double const tile = costs.tile + (params.window_right < kNoWindow ? costs.mask * step : 0);
  double const steps = (1 - costs.rows) * busiest.steps + costs.rows * busiest.attended;
  double const alone = busiest.tiles * tile + step * steps / num_splits;
  double const memory = grid.bytes_of_memory() / costs.memory * 1e-6;
  double const l2 = (grid.bytes_of_tiles() + grid.bytes_of_rows()) / costs.l2 * 1e-6;
  double const busy = alone * grid.slowdown(costs.share) + costs.cold * memory;
  double const all = std::cbrt(cube(busy) + cube(memory) + cube(l2));
  return costs.launch + all + merge_time(grid, costs, num_splits);
}

}  // namespace pyflash
