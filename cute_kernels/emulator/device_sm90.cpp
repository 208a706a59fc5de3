// The device primitives of an emulated SM90 kernel, and what its instrumented accesses to registers call.
#include "cute_kernels/device_sm90.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "cute_kernels/emulator/device.h"

namespace pyflash::device {

using emulator::machine;

// A number that all lanes of the warp agree on, as by a shuffle: a lane that asks alone waits for ever.
static int uniform(int value) {
  machine->elect_one();
  return value;
}

int warp_idx() { return uniform(machine->thread_idx() / 32); }
int warpgroup_idx() { return uniform(machine->thread_idx() / 128); }
int grid_size() { return machine->grid_size(); }

int bits(float x) { return std::bit_cast<int>(x); }
int exponent(float x) { return (bits(x) >> 23) - 127; }
float power_of_two(int exponent) { return std::ldexp(1.f, exponent); }
int max3(int a, int b, int c) { return std::max({a, b, c}); }
uint32_t bits_between(int begin, int end) {
  auto const below = [](int n) { return (uint64_t{1} << std::clamp(n, 0, 32)) - 1; };
  return static_cast<uint32_t>(below(end) & ~below(begin));
}

bool elect_one() { return machine->elect_one(); }

void mbarrier_init(Mbarrier& barrier, int n_arrivals) {
  machine->mbarrier_init(&barrier, n_arrivals);
}
void fence_mbarrier_init() { machine->fence_mbarrier_init(); }
void mbarrier_arrive(Mbarrier& barrier) { machine->mbarrier_arrive(&barrier, 0); }
void mbarrier_arrive_and_expect(Mbarrier& barrier, int bytes) {
  machine->mbarrier_arrive(&barrier, bytes);
}
void mbarrier_wait(Mbarrier& barrier, uint32_t parity) { machine->mbarrier_wait(&barrier, parity); }
bool mbarrier_test(Mbarrier& barrier, uint32_t parity) {
  return machine->mbarrier_test(&barrier, parity);
}

void named_barrier_sync(int id, int n_threads) { machine->named_barrier(id, n_threads, true); }
void named_barrier_arrive(int id, int n_threads) { machine->named_barrier(id, n_threads, false); }

void fence_async_proxy() { machine->fence_async_proxy(); }

void wait_for_previous_kernel() { machine->wait_for_previous_kernel(); }
void launch_dependents() {}

void prefetch_tensor_map(TensorMap const&) {}
void tma_load_box(TensorMap const& map, Mbarrier& barrier, void* smem, int const* coords,
                  int n_coords) {
  machine->tma_load(&map, &barrier, smem, coords, n_coords);
}

void tma_store_box(TensorMap const& map, void const* smem, int const* coords, int n_coords) {
  machine->tma_store(&map, smem, coords, n_coords);
}
void bulk_load_bytes(void const* global, Mbarrier& barrier, void* smem, int bytes) {
  machine->bulk_load(global, &barrier, smem, bytes);
}
void bulk_store(float const* smem, float* global, int bytes) {
  machine->bulk_store(smem, global, bytes);
}
void bulk_reduce_add(float const* smem, float* global, int bytes) {
  machine->bulk_reduce_add(smem, global, bytes);
}
void tma_store_commit() { machine->tma_store_commit(); }
void tma_store_wait(int n_pending) { machine->tma_store_wait(n_pending); }
void tma_store_wait_written() { machine->tma_store_wait_written(); }

void reduce_add(float4* address, float4 const& values) {
  machine->reduce_add(address, &values, sizeof values);
}
void reduce_add(float* address, float value) { machine->reduce_add(address, &value, sizeof value); }
float wait_until_at_most(float const* address, float bound) {
  return machine->wait_until_at_most(address, bound);
}
void store_release(float* address, float value) { machine->store_release(address, value); }
float add_release(float* address, float value) {
  return machine->add_release(address, value, false);
}
float add_release_of_cta(float* address, float value) {
  return machine->add_release(address, value, true);
}
void store_tagged(Tagged* address, Tagged const& value) { machine->store_tagged(address, &value); }
Tagged load_when_tagged(Tagged const* address, uint64_t tag) {
  Tagged value;
  machine->load_when_tagged(address, tag, &value);
  return value;
}

int cluster_size() { return machine->cluster_size(); }
int cluster_rank() { return machine->cluster_rank(); }
void cluster_sync() { machine->cluster_sync(); }
float load_from_rank(float const* address, int rank) {
  float value;
  machine->load_from_rank(address, rank, &value, sizeof value);
  return value;
}
float4 load_from_rank(float4 const* address, int rank) {
  float4 value;
  machine->load_from_rank(address, rank, &value, sizeof value);
  return value;
}

void store_matrices(uint32_t const (&words)[4], SmemAddress row) {
  machine->stmatrix(words, reinterpret_cast<void*>(row));
}

void load_matrices(uint32_t (&words)[4], SmemAddress row) {
  machine->ldmatrix(reinterpret_cast<void*>(row), words, 4, false);
}

void copy_captured(SmemAddress smem, void const* captured) {
  machine->async_copy_captured(captured, reinterpret_cast<void*>(smem), 16);
}

void copy_or_zeros(SmemAddress smem, void const* global, bool valid) {
  machine->async_copy(global, reinterpret_cast<void*>(smem), 16, valid);
}

uint32_t bits_of_group(uint32_t bits, int lane, int n_lanes) {
  for (int step = 1; step < n_lanes; step *= 2) {
    uint32_t const of_other = shfl_xor_bits(bits, step);
    bits = (lane ^ thread_idx()) & step ? of_other : bits;
  }
  return bits;
}

void mma_fence() { machine->mma_fence(); }
void mma_commit() { machine->mma_commit(); }
void mma_wait(int n_pending) { machine->mma_wait(n_pending); }

void registers_release(int n_registers) { machine->set_registers(n_registers, false); }
void registers_claim(int n_registers) { machine->set_registers(n_registers, true); }

}  // namespace pyflash::device

uint32_t pyflash_shared_address(void const* address) {
  return pyflash::emulator::machine->shared_address(address);
}

// The kernel is compiled with -fsanitize=thread, which puts a call before each access to a variable whose address is
// known elsewhere. The run-time library of the sanitizer is not linked; these take its place.
namespace {

using pyflash::emulator::machine;

__attribute__((always_inline)) inline void on_access(void* address, int bytes, bool write) {
  auto* const watch = machine == nullptr ? nullptr : machine->watch;
  if (watch == nullptr) {
    return;  // no thread of a kernel runs
  }
  auto const offset = static_cast<size_t>(static_cast<std::byte*>(address) - watch->stack);
  if (offset >= watch->stack_bytes) {
    return;
  }
  if (write) {
    for (size_t word = offset / 4; word <= (offset + bytes - 1) / 4; ++word) {
      watch->written[word] = watch->n_fences;
    }
  }
  auto const* const begin = static_cast<std::byte const*>(address);
  for (int i = 0; i < watch->n_ranges; ++i) {
    auto const& range = watch->ranges[i];
    if (begin < range.end && begin + bytes > range.begin && (write || range.accumulator)) {
      machine->register_touched(address, bytes, write);
      return;
    }
  }
}

}  // namespace

extern "C" {
#define PYFLASH_HOOKS(bytes)                                                            \
  void __tsan_read##bytes(void* address) { on_access(address, bytes, false); }          \
  void __tsan_write##bytes(void* address) { on_access(address, bytes, true); }          \
  void __tsan_volatile_read##bytes(void* address) { on_access(address, bytes, false); } \
  void __tsan_volatile_write##bytes(void* address) { on_access(address, bytes, true); }
PYFLASH_HOOKS(1)
PYFLASH_HOOKS(2)
PYFLASH_HOOKS(4)
PYFLASH_HOOKS(8)
PYFLASH_HOOKS(16)
#undef PYFLASH_HOOKS
#define PYFLASH_HOOKS(bytes)                                                             \
  void __tsan_unaligned_read##bytes(void* address) { on_access(address, bytes, false); } \
  void __tsan_unaligned_write##bytes(void* address) { on_access(address, bytes, true); }
PYFLASH_HOOKS(2)
PYFLASH_HOOKS(4)
PYFLASH_HOOKS(8)
PYFLASH_HOOKS(16)
#undef PYFLASH_HOOKS
void __tsan_read_range(void* address, unsigned long bytes) {
  on_access(address, static_cast<int>(bytes), false);
}
void __tsan_write_range(void* address, unsigned long bytes) {
  on_access(address, static_cast<int>(bytes), true);
}
// The host's shared_ptr calls this.
int __tsan_atomic32_fetch_add(int volatile* value, int added, int) {
  return __atomic_fetch_add(value, added, __ATOMIC_SEQ_CST);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void*, void*) {}
}
