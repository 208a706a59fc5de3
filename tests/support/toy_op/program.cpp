// What a process makes of a kernel library with a second op, a line each:
//   PROGRAM LIBRARY SHORT_FORM CUBIN
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "cute_kernels/host/config_map.h"
#include "cute_kernels/host/names.h"
#include "cute_kernels/host/short_form.h"

namespace {

using namespace pyflash;

void run(Kernel<Negate> const& kernel, char const* what, float scale, bool twice, int n = 32) {
  std::vector<float> x(n, 2), y(n, 0);
  NegateParams params{
      .x = x.data(), .y = y.data(), .n = n, .d_head = 64, .scale = scale, .twice = twice};
  auto const [buffer] = Negate::workspace(params);
  std::vector<float> memory(buffer.n_elements);
  params.*buffer.pointer = memory.data();
  if (char const* const reason = kernel.refuses(params)) {
    std::printf("%s: refused, %s\n", what, reason);
    return;
  }
  int const error = kernel.run(params, nullptr);
  std::printf("%s: error %d, y %g\n", what, error, y.back());
}

}  // namespace

int main(int, char** argv) {
  std::printf("rows %d\n", int(load_kernel_library(argv[1])));
  std::printf("%s\n", config_map_json().c_str());
  auto const config = parse_short_form_of<Negate>(argv[2]);
  Kernel<Negate> const kernel = *find_kernel<Negate>(config);
  std::printf("shape %d, of op forward %d\n", kernel.row->shape.rows,
              int(all_kernels<Forward>().size()));
  run(kernel, "plain", 1, false);
  run(kernel, "scaled", 3, false);
  run(kernel, "twice", 3, true);
  run(kernel, "ragged", 1, false, 33);
  try {
    parse_short_form_of<Forward>(argv[2]);
  } catch (std::runtime_error const& refused) {
    std::printf("refused: %s\n", refused.what());
  }
  // A cubin takes the place of the kernel with its features alone.
  load_cubin(Cubin<Negate>{.path = argv[3],
                           .config = config,
                           .features = {parse_features<NegateFeatures>("scaled")},
                           .symbols = {"symbol"},
                           .sm_arch = "90",
                           .n_threads = 64,
                           .smem_bytes = 0,
                           .ctas_per_sm = 1,
                           .rank = 7});
  Kernel<Negate> const partly = *find_kernel<Negate>(config);
  std::printf("rank %d, shape %d\n", partly.row->rank, partly.row->shape.rows);
  run(partly, "plain", 1, false);
  run(partly, "of the cubin", 3, false);
}
