// A kernel for the emulator alone: O = -Q, by TMA in and out. Each CTA takes kRows rows of one head of one sequence; rows
// are as wide as the swizzle's pattern. `bug` picks what is left out, see test_emulator_tma.py.
#include "cute_kernels/emulator/atoms_sm90.h"

#include <memory>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/emulator/device.h"
#include "cute_kernels/emulator/machine.h"
#include "cute_kernels/emulator/tensor_map.h"

extern "C" {
__attribute__((visibility("default"))) int bug = 0;
}

namespace {

using namespace pyflash;

constexpr int kThreads = 64;
constexpr int kRows = 32;
constexpr int kMaxBytes = kRows * 128;
enum Bug { kNone, kNoProxyFence, kNoBarrier, kNoCommit, kNoWait, kBuffersReused };

struct SharedStorage {
  alignas(1024) char in[kMaxBytes];
  alignas(1024) char out[kMaxBytes];
  device::Mbarrier full;
};

struct Params {
  device::TensorMap q_map;
  device::TensorMap o_map;
  ForwardParams problem;
};

bool encode(device::TensorMap& map, void const* base, ForwardParams const& problem,
            TensorStrides const& strides) {
  auto const columns = static_cast<cuuint64_t>(problem.d_head);
  cuuint64_t const extents[] = {columns, cuuint64_t(problem.seqlen_q)};
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

void run_thread(void const* pointer) {
  auto const& params = *static_cast<Params const*>(pointer);
  ForwardParams const& problem = params.problem;
  auto& smem = device::dynamic_smem<SharedStorage>();
  int const thread = device::thread_idx();
  int const first_row = device::block_idx() * kRows;
  int const bytes = kRows * problem.d_head * 2;
  if (thread == 0) {
    device::mbarrier_init(smem.full, 1);
    device::fence_mbarrier_init();
  }
  device::sync_threads();
  if (thread == 0) {
    device::at(device::Site::Q_g2s);
    device::mbarrier_arrive_and_expect(smem.full, bytes);
    device::tma_load<device::CacheHint::kNormal>(params.q_map, smem.full, smem.in, 0, first_row);
  }
  device::mbarrier_wait(smem.full, 0);
  // NOTE: in and out have one layout, swizzled or not.
  for (int offset = thread * 16; offset < bytes; offset += kThreads * 16) {
    device::at(device::Site::Q_s2r);
    uint4 value = device::load(reinterpret_cast<uint4 const*>(smem.in + offset));
    for (unsigned* word : {&value.x, &value.y, &value.z, &value.w}) {
      *word ^= 0x80008000u;
    }
    device::at(device::Site::O_r2s);
    device::store(reinterpret_cast<uint4*>(smem.out + offset), value);
  }
  if (bug != kNoProxyFence) {
    device::fence_async_proxy();
  }
  if (bug != kNoBarrier) {
    device::sync_threads();
  }
  device::at(device::Site::O_s2g);
  if (thread == 0) {
    device::tma_store(params.o_map, smem.out, 0, first_row);
    if (bug != kNoCommit) {
      device::tma_store_commit();
    }
    if (bug != kNoWait && bug != kBuffersReused) {
      device::tma_store_wait<0>();
    }
    if (bug == kBuffersReused) {
      device::at(device::Site::O_r2s);
      device::store(reinterpret_cast<uint4*>(smem.out), uint4{1, 2, 3, 4});
      device::tma_store_wait<0>();
    }
  }
  device::at(device::Site::lse_r2g);
  if (thread < kRows && first_row + thread < problem.seqlen_q) {
    device::store(problem.lse + first_row + thread, 0.f);
  }
}

emulator::Launch launch(ForwardParams const& problem, int) {
  auto params = std::make_shared<Params>();
  params->problem = problem;
  bool const encoded = encode(params->q_map, problem.q, problem, problem.q_strides) &&
                       encode(params->o_map, problem.o, problem, problem.o_strides);
  return {.n_ctas = (problem.seqlen_q + kRows - 1) / kRows,
          .params = params,
          .error = encoded ? nullptr : "no tensor map"};
}

}  // namespace

emulator::EmulatedKernel const* pyflash_emulated_kernel() {
  static constexpr emulator::EmulatedKernel kernel{
      .n_threads = kThreads,
      .smem_bytes = sizeof(SharedStorage),
      .access_bytes = 16,
      .watches_registers = false,
      .registers = 0,
      .max_cluster = 1,
      .tiles = {},
      .rings = {},
      .refusal = nullptr,
      .launch = launch,
      .attach = [](emulator::Machine* m) { emulator::machine = m; },
      .run_thread = run_thread,
      .role = [](int) { return ""; }};
  return &kernel;
}
