// O = -Q, by TMA in and out. Each CTA takes kRows rows of one head of one sequence; rows are as wide as the swizzle's
// pattern. `bug` picks what is left out, see test_emulator_tma.py.
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/params.h"

namespace pyflash::negate {

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

// One thread of a CTA.
CUTE_DEVICE void negate_rows(Params const& params, int bug) {
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
    device::tma_load<device::CacheHint::kNormal>(params.q_map, smem.full,
                                                 device::smem_address(smem.in), 0, first_row);
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
  if (thread < kRows && first_row + thread < problem.q_sequences().longest) {
    device::store(problem.lse + first_row + thread, 0.f);
  }
}

}  // namespace pyflash::negate
