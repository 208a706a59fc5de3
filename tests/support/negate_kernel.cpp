// negate_kernel.h for the emulator.
#include "cute_kernels/emulator/atoms_sm90.h"

#include <memory>

#include "cute_kernels/emulator/device.h"
#include "cute_kernels/emulator/machine.h"
#include "cute_kernels/emulator/tensor_map.h"
#include "tests/support/negate_kernel.h"

extern "C" {
__attribute__((visibility("default"))) int bug = 0;
}

namespace {

using namespace pyflash;
using namespace pyflash::negate;

bool encode(device::TensorMap& map, void const* base, ForwardParams const& problem,
            TensorStrides const& strides) {
  auto const columns = static_cast<cuuint64_t>(problem.d_head);
  cuuint64_t const extents[] = {columns, cuuint64_t(problem.q_sequences().longest)};
  cuuint64_t const pitches[] = {cuuint64_t(strides.row) * 2};
  cuuint32_t const box[] = {cuuint32_t(columns), kRows};
  cuuint32_t const ones[] = {1, 1};
  auto const swizzle = columns == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                       : columns == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                       : columns == 16 ? CU_TENSOR_MAP_SWIZZLE_32B
                                       : CU_TENSOR_MAP_SWIZZLE_NONE;
  return emulator::encode_tensor_map(
             &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, const_cast<void*>(base), extents, pitches,
             box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

emulator::Launch launch(ListedForwardParams const& problem, variant::Arguments const&, int) {
  auto params = std::make_shared<Params>();
  params->problem = problem;
  bool const encoded = encode(params->q_map, problem.q, problem, problem.q_strides) &&
                       encode(params->o_map, problem.o, problem, problem.o_strides);
  return {.n_ctas = (problem.q_sequences().longest + kRows - 1) / kRows,
          .params = params,
          .error = encoded ? nullptr : "no tensor map"};
}

}  // namespace

emulator::EmulatedKernel const* pyflash_emulated_kernel() {
  static constexpr emulator::EmulatedKernel kernel{
      .n_threads = kThreads,
      .smem_bytes = sizeof(SharedStorage),
      .access_bytes = 16,
      .starts_early = false,
      .watches_registers = false,
      .registers = 0,
      .cluster = nullptr,
      .tiles = {},
      .rings = {},
      .refusal = nullptr,
      .launch = launch,
      .attach = [](emulator::Machine* m) { emulator::machine = m; },
      .run_thread =
          [](void const* params) { negate_rows(*static_cast<Params const*>(params), bug); },
      .role = [](int) { return ""; }};
  return &kernel;
}
