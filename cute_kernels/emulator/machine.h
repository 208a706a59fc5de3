// What a kernel that was compiled for the CPU asks of the machine that runs it, and what that machine knows of the
// kernel. The kernel's side (device.cpp, atoms.h) is linked into each emulated kernel; the machine is emulator.h.
#pragma once

#include <cstdint>

#include "cute_kernels/config.h"
#include "cute_kernels/params.h"

namespace pyflash::emulator {

// mma.m16n8k16 as one lane sees it: its registers in the order of the PTX instruction. `c` becomes D.
struct MmaRegisters {
  uint32_t a[4];
  uint32_t b[2];
  float c[4];
};

// The calls of the thread that runs now. Addresses of shared and global memory are windows that nothing may touch: the
// machine keeps the bytes elsewhere, so that no access escapes it.
class Machine {
 public:
  virtual ~Machine() = default;

  virtual void at(int site) = 0;
  virtual int thread_idx() = 0;
  virtual int block_idx() = 0;
  virtual void* dynamic_smem() = 0;

  virtual void sync_threads() = 0;
  virtual void sync_warp() = 0;
  virtual float shfl_xor(float value, int lane_mask) = 0;

  // Between any two of registers, shared and global memory.
  virtual void copy(void const* source, void* destination, int bytes) = 0;
  // cp.async; zeros where the source is not `valid`.
  virtual void async_copy(void const* source, void* destination, int bytes, bool valid) = 0;
  virtual void async_commit() = 0;
  virtual void async_wait(int n_pending) = 0;

  // n_matrices of 8 x 8 16-bit elements, a register each; `row` is the address that this lane gives.
  virtual void ldmatrix(void const* row, uint32_t* registers, int n_matrices, bool transposed) = 0;
  virtual void mma(MmaRegisters& registers, DType dtype) = 0;
  virtual void count_exponential() = 0;
  virtual void count_reciprocal() = 0;

  // An operation that has no emulation. Does not return.
  virtual void fail(char const* what) = 0;
};

struct EmulatedKernel {
  int n_threads;
  int smem_bytes;
  int64_t (*n_ctas)(ForwardParams const& params);
  void (*attach)(Machine* machine);                 // to run its threads
  void (*run_thread)(ForwardParams const& params);  // one thread of one CTA, from start to end
};

}  // namespace pyflash::emulator

// Defined in the emitted translation unit.
pyflash::emulator::EmulatedKernel const* pyflash_emulated_kernel();
