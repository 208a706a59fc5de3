// Runs an emulated kernel CTA by CTA and keeps account of what its threads do.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cute_kernels/emulator/faults.h"
#include "cute_kernels/emulator/findings.h"
#include "cute_kernels/emulator/global_memory.h"
#include "cute_kernels/emulator/machine.h"
#include "cute_kernels/emulator/scheduler.h"
#include "cute_kernels/emulator/shared_memory.h"
#include "cute_kernels/emulator/traffic.h"

namespace pyflash::emulator {

// How often each operation ran, in all CTAs.
struct Counts {
  int64_t mma = 0;  // of warps, as are the next three
  int64_t ldmatrix = 0;
  int64_t shuffles = 0;
  int64_t warp_syncs = 0;
  int64_t barriers = 0;  // of CTAs
  int64_t cp_async = 0;  // of threads, as are the next four
  int64_t cp_async_commits = 0;
  int64_t cp_async_waits = 0;
  int64_t exponentials = 0;
  int64_t reciprocals = 0;
};

class Emulator final : public Machine, private Scheduler, private FaultHandler {
 public:
  Emulator(EmulatedKernel const& kernel, Order order, uint64_t seed);

  // Every tensor that params point to is added before the first CTA runs. Returns what the kernel takes for its address.
  uintptr_t add_tensor(GlobalTensor const& tensor) { return global_.add(tensor); }

  // False: the CTA could not go on, and no other can be run.
  bool run_cta(ForwardParams const& params, int64_t cta);
  // After the last CTA.
  void finish() { global_.check_written(findings_); }

  Findings const& findings() const { return findings_; }
  TrafficTable const& traffic() const { return traffic_; }
  Counts const& counts() const { return counts_; }

  // Machine
  void at(int site) override;
  int thread_idx() override;
  int block_idx() override;
  void* dynamic_smem() override;
  void sync_threads() override;
  void sync_warp() override;
  float shfl_xor(float value, int lane_mask) override;
  void copy(void const* source, void* destination, int bytes) override;
  void async_copy(void const* source, void* destination, int bytes, bool valid) override;
  void async_commit() override;
  void async_wait(int n_pending) override;
  void ldmatrix(void const* row, uint32_t* registers, int n_matrices, bool transposed) override;
  void mma(MmaRegisters& registers, DType dtype) override;
  void count_exponential() override;
  void count_reciprocal() override;
  void fail(char const* what) override;

 private:
  static void thread_main();

  void end_cta();
  Accessor accessor(Thread const& thread, int site);
  void count_traffic(Path path, void const* address, int bytes);
  void land(Thread& thread, size_t n_copies);
  void meet(Warp& warp) override;
  void meet_mma(Warp& warp);
  void meet_ldmatrix(Warp& warp);
  void meet_shuffle(Warp& warp);
  void diverged(Thread const& a, Thread const& b, std::string const& detail) override;
  void on_fault(void* address) override;

  EmulatedKernel const& kernel_;
  ForwardParams const* params_ = nullptr;
  Findings findings_;
  GlobalMemory global_;
  SharedMemory shared_;
  TrafficTable traffic_;
  Counts counts_;
  DType mma_dtype_ = DType::FP16;
  int64_t cta_ = 0;
};

}  // namespace pyflash::emulator
