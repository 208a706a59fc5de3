// The interface between a kernel that is compiled for the CPU and the machine that runs it. The kernel's side
// (device.cpp, device_sm90.cpp, atoms.h, atoms_sm90.h) is linked into each emulated kernel; the machine is emulator.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cute_kernels/backward_params.h"
#include "cute_kernels/config.h"
#include "cute_kernels/forward.h"
#include "cute_kernels/params.h"
#include "cute_kernels/registry.h"

namespace pyflash::variant {
struct Arguments;
}

namespace pyflash::emulator {

// mma.m16n8k16 as one lane sees it: its registers in the order of the PTX instruction. `c` becomes D.
struct MmaRegisters {
  uint32_t a[4];
  uint32_t b[2];
  float c[4];
};

// wgmma.mma_async.m64nNk16 with fp32 accumulators, as one thread sees it.
struct WarpgroupMma {
  DType dtype;
  int n;
  uint32_t const* a;  // four registers; nullptr: A is in shared memory
  uint64_t a_desc;
  uint64_t b_desc;
  bool a_is_mn_major;
  bool b_is_mn_major;
  bool negate_a;
  bool negate_b;
  bool accumulate;  // onto d; else d is overwritten
  float* d;         // n / 2 registers
};

// The registers of the thread that runs, as far as warpgroup MMAs concern them: they are variables on its stack. Those of
// an MMA in flight must not be touched, and what was written before an MMA needs a fence.
struct RegisterWatch {
  struct Range {
    std::byte const* begin;
    std::byte const* end;
    bool accumulator;  // else an A operand, which may be read
    int site;          // of the MMA
  };
  static constexpr int kMaxRanges = 16;

  std::byte* stack = nullptr;  // the lowest address
  size_t stack_bytes = 0;
  uint32_t* written = nullptr;  // of each word of the stack: n_fences when it was last written
  uint32_t n_fences = 1;
  int n_ranges = 0;
  Range ranges[kMaxRanges];
};

// The calls of the thread that runs now. Addresses of shared and global memory are windows that nothing may touch: the
// machine keeps the bytes elsewhere, so that no access escapes it.
class Machine {
 public:
  virtual ~Machine() = default;

  virtual void at(int site) = 0;
  virtual void leave_out() = 0;
  virtual int thread_idx() = 0;
  virtual int block_idx() = 0;
  virtual int grid_size() = 0;
  virtual int cluster_size() = 0;
  virtual int cluster_rank() = 0;
  virtual void* dynamic_smem() = 0;

  virtual void sync_threads() = 0;
  virtual void sync_warp() = 0;
  virtual float shfl_xor(float value, int lane_mask) = 0;

  // Between any two of registers, shared and global memory.
  virtual void copy(void const* source, void* destination, int bytes) = 0;
  // cp.async; zeros where the source is not `valid`.
  virtual void async_copy(void const* source, void* destination, int bytes, bool valid) = 0;
  // cp.async of what a variant captures, which lies where the host has it.
  virtual void async_copy_captured(void const* source, void* destination, int bytes) = 0;
  virtual void async_commit() = 0;
  virtual void async_wait(int n_pending) = 0;

  // n_matrices of 8 x 8 16-bit elements, a register each; `row` is the address that this lane gives.
  virtual void ldmatrix(void const* row, uint32_t* registers, int n_matrices, bool transposed) = 0;
  virtual void mma(MmaRegisters& registers, DType dtype) = 0;
  virtual void count_exponential() = 0;
  virtual void count_reciprocal() = 0;

  // SM90
  virtual void wait_for_previous_kernel() = 0;
  virtual bool elect_one() = 0;
  virtual bool any_lane(bool value) = 0;
  virtual void mbarrier_init(void* barrier, int n_arrivals) = 0;
  virtual void fence_mbarrier_init() = 0;
  // bytes: that this phase waits for in addition; 0: it only arrives.
  virtual void mbarrier_arrive(void* barrier, int bytes) = 0;
  virtual void mbarrier_wait(void* barrier, uint32_t parity) = 0;
  virtual bool mbarrier_test(void* barrier, uint32_t parity) = 0;
  // waits: bar.sync; else bar.arrive.
  virtual void named_barrier(int id, int n_threads, bool waits) = 0;
  virtual void cluster_sync() = 0;
  // From where the CTA of this rank has what this one has at `address`, to registers.
  virtual void load_from_rank(void const* address, int rank, void* value, int bytes) = 0;
  virtual void fence_async_proxy() = 0;
  virtual void tma_load(void const* map, void* barrier, void* smem, int const* coords,
                        int n_coords) = 0;
  // Four 8 x 8 matrices; `row` is the address that this lane gives.
  virtual void stmatrix(uint32_t const* words, void* row) = 0;
  virtual void tma_store(void const* map, void const* smem, int const* coords, int n_coords) = 0;
  virtual void bulk_load(void const* global, void* barrier, void* smem, int bytes) = 0;
  virtual void bulk_store(void const* smem, void* global, int bytes) = 0;
  // A reduction of floats.
  virtual void bulk_reduce_add(void const* smem, void* global, int bytes) = 0;
  // Adds floats from registers.
  virtual void reduce_add(void* global, void const* values, int bytes) = 0;
  // Turns, which CTAs take one after another: a number that is above `bound` stays so.
  virtual float wait_until_at_most(float const* address, float bound) = 0;
  virtual void store_release(float* address, float value) = 0;
  // of_cta: what all threads of the CTA have added is complete, not only what this one has.
  virtual float add_release(float* address, float value, bool of_cta) = 0;
  // device::Tagged. A CTA waits for those of CTAs before it alone; a tag that is stored is taken away in the end: by one of 0.
  virtual void store_tagged(void* address, void const* value) = 0;
  virtual void load_when_tagged(void const* address, uint64_t tag, void* value) = 0;
  virtual void tma_store_commit() = 0;
  virtual void tma_store_wait(int n_pending) = 0;
  virtual void tma_store_wait_written() = 0;
  virtual void warpgroup_mma(WarpgroupMma const& mma) = 0;
  virtual void mma_fence() = 0;
  virtual void mma_commit() = 0;
  virtual void mma_wait(int n_pending) = 0;
  virtual void set_registers(int n_registers, bool claim) = 0;
  // As instructions take it: an offset in the shared window of the CTA.
  virtual uint32_t shared_address(void const* address) = 0;
  // A touch of registers of an MMA in flight.
  virtual void register_touched(void const* address, int bytes, bool write) = 0;

  // An operation that has no emulation. Does not return.
  virtual void fail(char const* what) = 0;

  RegisterWatch* watch = nullptr;  // of the thread that runs
};

// A grid as the launcher makes it.
struct Launch {
  int64_t n_ctas = 0;                            // a multiple of cluster
  int cluster = 1;                               // CTAs that run together
  std::shared_ptr<void const> params = nullptr;  // of the kernel
  char const* error = nullptr;                   // why there is none
  bool runs_beside = false;                      // the kernel before it, and ends after that
};

struct EmulatedBackward;

// What shared memory holds, by name. Stages follow each other.
struct SmemTile {
  char const* name;
  int offset;
  int bytes;  // of a stage
  int n_stages;
};

// A pair of mbarriers for each stage of a ring: full and empty.
struct SmemRing {
  char const* name;
  int full;  // the offset of the first stage's
  int empty;
  int n_stages;
};

struct EmulatedKernel {
  int n_threads;
  int smem_bytes;
  int access_bytes;        // of the smallest access to shared memory, and what all are aligned to
  bool starts_early;       // before the kernel before it has ended, for which it waits itself
  bool watches_registers;  // it is compiled so that RegisterWatch learns of its accesses
  int registers;           // of a thread when a CTA starts; 0: they are never moved
  // In op forward, the CTAs that share a tile, a split of the keys each, and merge them; nullptr: none do. n_resident:
  // CTAs that run at a time.
  int (*cluster)(ForwardParams const& params, int n_resident);
  Span<SmemTile> tiles;  // operands of warpgroup MMAs lie within one of their stages
  Span<SmemRing> rings;
  char const* (*refusal)(ListedForwardParams const& params);  // of a problem; nullptr: none
  // captured: of the variant that the kernel is compiled with, if it is.
  Launch (*launch)(ListedForwardParams const& params, variant::Arguments const& captured,
                   int n_resident);
  EmulatedBackward const* backward = nullptr;  // what it has in place of these, if it is of that op
  void (*attach)(Machine* machine);            // to run its threads
  void (*run_thread)(void const* params);      // one thread of one CTA, from start to end
  char const* (*role)(int warp);               // of a warp, in words
  bool has_variant = false;
  TileShape shape = {};                 // of op forward, as are
  Span<ForwardFeatures> features = {};  // the combinations that it is compiled with
};

template <ForwardFeatures... kBuilt>
inline constexpr ForwardFeatures kBuiltList[] = {kBuilt...};
template <ForwardFeatures... kBuilt>
inline constexpr Span<ForwardFeatures> kBuiltFeatures{kBuiltList<kBuilt...>, sizeof...(kBuilt)};

// A config of op backward: its kernels, which run in a row.
struct EmulatedBackward {
  static constexpr int kPhases = 3;

  BackwardShape shape;
  EmulatedKernel const* kernels[kPhases];  // before, the config's own, after
  char const* (*refusal)(BackwardParams const& params);
  // captured: of the variant that the config's own kernel is compiled with, if it is.
  Launch (*launch)(int phase, BackwardParams const& params, variant::Arguments const& captured,
                   int n_resident);
};

}  // namespace pyflash::emulator

// Defined in the emitted translation unit.
pyflash::emulator::EmulatedKernel const* pyflash_emulated_kernel();
