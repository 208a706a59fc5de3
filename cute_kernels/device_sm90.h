// The device primitives of SM90 kernels, beside those of device.h: mbarriers, named barriers, TMA, warpgroup MMA order,
// register reallocation.
#pragma once

#include <bit>
#include <cstdint>

#include <cuda.h>

#include <cute/arch/cluster_sm90.hpp>
#include <cute/arch/copy_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

#include "cute_kernels/device.h"
#include "cute_kernels/generated/mma_sm90.h"

namespace pyflash::device {

using TensorMap = CUtensorMap;
// A phase completes when the expected arrivals, and the bytes of transactions, have come.
using Mbarrier = uint64_t;
// What L2 does with what is loaded: it goes first where it is read once.
enum class CacheHint { kNormal, kReadOnce };

#if defined(__CUDACC__)

// The warp, and the warpgroup, of this thread, in a register that the compiler knows to be uniform. By all lanes of a warp.
CUTE_DEVICE int warp_idx() { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }
CUTE_DEVICE int warpgroup_idx() { return __shfl_sync(0xffffffffu, threadIdx.x / 128, 0); }
CUTE_DEVICE int grid_size() { return gridDim.x; }

// An address in shared memory. NOTE: not a pointer, whose high half the compiler carries along where it does not see that the
// memory is shared, as through a swizzle.
using SmemAddress = uint32_t;
CUTE_DEVICE SmemAddress smem_address(void const* p) { return cute::cast_smem_ptr_to_uint(p); }

// The CTA's dynamic shared memory, from an address that is known to be uniform, too. Of dynamic_smem the compiler computes the
// address again wherever it is used, in every block of keys.
template <class SharedStorage>
CUTE_DEVICE SharedStorage& uniform_smem() {
  uint32_t const address =
      __shfl_sync(0xffffffffu, cute::cast_smem_ptr_to_uint(&dynamic_smem<SharedStorage>()), 0);
  return *reinterpret_cast<SharedStorage*>(__cvta_shared_to_generic(address));
}

// p, which the compiler takes for another pointer each time: what follows from it is not computed ahead of time either.
template <class T>
CUTE_DEVICE T* fresh(T* p) {
  asm volatile("" : "+l"(p));
  return p;
}

CUTE_DEVICE uint4 load_shared(SmemAddress address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

CUTE_DEVICE void store_shared(SmemAddress address, uint4 value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

// One value to global memory, by one instruction. NOTE: of what an asm statement has loaded, the compiler stores each word alone.
CUTE_DEVICE void store_global(uint4* address, uint4 value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"l"(address), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

// The bits of x. They order numbers above 0 as these are, and put all others below, NaN aside.
CUTE_DEVICE int bits(float x) { return __float_as_int(x); }
// Has the compiler keep a value, and not compute it again.
CUTE_DEVICE void keep(int& value) { asm volatile("" : "+r"(value)); }
// 0, of which the compiler does not know that it is: grids have one dimension.
CUTE_DEVICE uint32_t unknown_zero() {
  uint32_t zero;
  asm("mov.u32 %0, %%ctaid.z;\n" : "=r"(zero));
  return zero;
}

// The exponent of x > 0, rounded down, and 2 to one from -126 to 127.
CUTE_DEVICE int exponent(float x) { return (__float_as_int(x) >> 23) - 127; }
CUTE_DEVICE float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// The largest of three, one instruction.
CUTE_DEVICE int max3(int a, int b, int c) { return __vimax3_s32(a, b, c); }

// A word of bits [begin, end), as far as it has these.
CUTE_DEVICE uint32_t bits_between(int begin, int end) {
  uint32_t word;
  begin = max(begin, 0);
  asm("bmsk.clamp.b32 %0, %1, %2;\n" : "=r"(word) : "r"(begin), "r"(max(end - begin, 0)));
  return word;
}

// One lane of the warp.
CUTE_DEVICE bool elect_one() { return cute::elect_one_sync(); }

CUTE_DEVICE void mbarrier_init(Mbarrier& barrier, int n_arrivals) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(cute::cast_smem_ptr_to_uint(&barrier)),
      "r"(n_arrivals)
      : "memory");
}

// Makes initialised mbarriers visible to TMA. A barrier of the CTA still has to follow.
CUTE_DEVICE void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

CUTE_DEVICE void mbarrier_arrive(Mbarrier& barrier) {
  asm volatile(
      "mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(cute::cast_smem_ptr_to_uint(&barrier))
      : "memory");
}

// Arrives, and adds `bytes` to what this phase waits for.
CUTE_DEVICE void mbarrier_arrive_and_expect(Mbarrier& barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(
                   cute::cast_smem_ptr_to_uint(&barrier)),
               "r"(bytes)
               : "memory");
}

// Waits until the phase of this parity has completed.
CUTE_DEVICE void mbarrier_wait(Mbarrier& barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "try_again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra try_again;\n"
      "}\n" ::"r"(cute::cast_smem_ptr_to_uint(&barrier)),
      "r"(parity)
      : "memory");
}

// Whether it has, as far as one can tell without waiting.
CUTE_DEVICE bool mbarrier_test(Mbarrier& barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(done)
      : "r"(cute::cast_smem_ptr_to_uint(&barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

// Named barriers of a CTA; 0 is that of sync_threads.
CUTE_DEVICE void named_barrier_sync(int id, int n_threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(n_threads) : "memory");
}
CUTE_DEVICE void named_barrier_arrive(int id, int n_threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(n_threads) : "memory");
}

// Makes this thread's stores to shared memory visible to TMA and the tensor cores.
CUTE_DEVICE void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

// Adds four floats to global ones, each atomically, in any order.
CUTE_DEVICE void reduce_add(float4* address, float4 const& values) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(address), "f"(values.x),
               "f"(values.y), "f"(values.z), "f"(values.w)
               : "memory");
}

CUTE_DEVICE void prefetch_tensor_map(TensorMap const& map) {
  cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(&map));
}

// Loads the map's box at these coordinates, innermost first, and completes its bytes on `barrier`.
template <CacheHint kHint, class... Coords>
CUTE_DEVICE void tma_load(TensorMap const& map, Mbarrier& barrier, SmemAddress smem,
                          Coords... coords) {
  constexpr auto kPolicy = kHint == CacheHint::kReadOnce ? cute::TMA::CacheHintSm90::EVICT_FIRST
                                                         : cute::TMA::CacheHintSm90::EVICT_NORMAL;
  cute::SM90_TMA_LOAD::copy(&map, &barrier, static_cast<uint64_t>(kPolicy),
                            reinterpret_cast<void*>(__cvta_shared_to_generic(smem)), coords...);
}

// Loads contiguous bytes, and completes them on `barrier`. Addresses and `bytes` are multiples of 16.
template <class T>
CUTE_DEVICE void bulk_load(T const* global, Mbarrier& barrier, T* smem, int bytes) {
  cute::SM90_BULK_COPY_G2S::copy(global, &barrier, smem, bytes);
}
// Stores contiguous bytes of shared memory. A store to the groups of tma_store. Addresses and `bytes` are multiples of 16.
CUTE_DEVICE void bulk_store(float const* smem, float* global, int bytes) {
  cute::SM90_BULK_COPY_S2G::copy(smem, global, bytes);
}
// Adds contiguous floats of shared memory to global ones, each atomically, in any order. A store to the groups of tma_store.
CUTE_DEVICE void bulk_reduce_add(float const* smem, float* global, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n" ::"l"(global),
      "r"(cute::cast_smem_ptr_to_uint(smem)), "r"(bytes)
      : "memory");
}

// The cluster of this CTA: CTAs that run at the same time and can read each other's shared memory.
CUTE_DEVICE int cluster_size() { return static_cast<int>(cute::cluster_shape().x); }
CUTE_DEVICE int cluster_rank() { return static_cast<int>(cute::block_rank_in_cluster()); }
// Waits for all threads of its CTAs that have not exited; what they wrote to shared memory before is visible after.
CUTE_DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\n" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;\n" ::: "memory");
}

// Reads where the CTA of this rank has what this one has at `address`, in shared memory.
CUTE_DEVICE float load_from_rank(float const* address, int rank) {
  uint32_t const remote = cute::set_block_rank(cute::cast_smem_ptr_to_uint(address), rank);
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];\n" : "=f"(value) : "r"(remote) : "memory");
  return value;
}
CUTE_DEVICE float4 load_from_rank(float4 const* address, int rank) {
  uint32_t const remote = cute::set_block_rank(cute::cast_smem_ptr_to_uint(address), rank);
  float4 value;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];\n"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(remote)
               : "memory");
  return value;
}

// Stores four 8x8 matrices of 16-bit elements to shared memory: of matrix i, lane l has columns 2 (l % 4) and the next of row
// l / 4 in words[i]; lanes 8 i to 8 i + 7 have the addresses of its rows.
CUTE_DEVICE void store_matrices(uint32_t const (&words)[4], SmemAddress row) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(row),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// Loads four 8x8 matrices of 16-bit elements from shared memory: the lanes have them as above.
CUTE_DEVICE void load_matrices(uint32_t (&words)[4], SmemAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}
CUTE_DEVICE uint2 load_shared_pair(SmemAddress address) {
  uint2 value;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n"
               : "=r"(value.x), "=r"(value.y)
               : "r"(address)
               : "memory");
  return value;
}
// Copies 16 bytes of what a variant captures to shared memory: a cp.async, of the groups of async_commit. Offsets are in bytes.
template <int kSmemOffset, int kOffset>
CUTE_DEVICE void copy_captured(SmemAddress smem, void const* captured) {
  asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16;\n" ::"r"(smem), "l"(captured),
               "n"(kSmemOffset), "n"(kOffset)
               : "memory");
}
// Has L2 fetch the line of an address.
CUTE_DEVICE void prefetch(void const* global) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(global));
}
// Copies 16 bytes to shared memory, a cp.async, or zeros where they are not `valid`, and nothing is read.
CUTE_DEVICE void copy_or_zeros(SmemAddress smem, void const* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(smem), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
// What lane `lane` of this thread's group of kLanes has. NOTE: for the emulator, which exchanges lanes by bits of their numbers, all
// of a group ask for the same lane, or each lane of a quad for the one at its own place in another quad, the same for all four.
template <int kLanes>
CUTE_DEVICE uint32_t bits_of_group(uint32_t bits, int lane) {
  return __shfl_sync(0xffffffffu, bits, lane, kLanes);
}
// Bits of a word, rotated to the left or to the right.
CUTE_DEVICE uint32_t rotate_left(uint32_t bits, int n) { return __funnelshift_l(bits, bits, n); }
CUTE_DEVICE uint32_t rotate_right(uint32_t bits, int n) { return __funnelshift_r(bits, bits, n); }

// Stores the map's box to these coordinates, innermost first; what of it lies outside is left out. This thread's stores since
// the last commit are a group; the wait is for reads of shared memory, by all but the kPending newest groups.
template <class T, class... Coords>
CUTE_DEVICE void tma_store(TensorMap const& map, T const* smem, Coords... coords) {
  cute::SM90_TMA_STORE::copy(&map, smem, coords...);
}
CUTE_DEVICE void tma_store_commit() { cute::tma_store_arrive(); }
template <int kPending>
CUTE_DEVICE void tma_store_wait() {
  cute::tma_store_wait<kPending>();
}
// Waits until all of them have been written, too.
CUTE_DEVICE void tma_store_wait_written() {
  asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
}

// Order of warpgroup MMAs.
CUTE_DEVICE void mma_fence() { cute::warpgroup_arrive(); }
CUTE_DEVICE void mma_commit() { cute::warpgroup_commit_batch(); }
template <int kPending>
CUTE_DEVICE void mma_wait() {
  cute::warpgroup_wait<kPending>();
}

// Moves registers between the warpgroups of a CTA.
template <int kRegisters>
CUTE_DEVICE void registers_release() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
CUTE_DEVICE void registers_claim() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

#else

int warp_idx();
int warpgroup_idx();
int grid_size();
using SmemAddress = uintptr_t;
inline SmemAddress smem_address(void const* p) { return reinterpret_cast<SmemAddress>(p); }
template <class SharedStorage>
SharedStorage& uniform_smem() {
  return dynamic_smem<SharedStorage>();
}
template <class T>
T* fresh(T* p) {
  return p;
}

inline uint4 load_shared(SmemAddress address) {
  return load(reinterpret_cast<uint4 const*>(address));
}
inline void store_shared(SmemAddress address, uint4 value) {
  store(reinterpret_cast<uint4*>(address), value);
}
inline void store_global(uint4* address, uint4 value) { store(address, value); }

int bits(float x);
inline void keep(int&) {}
inline uint32_t unknown_zero() { return 0; }
int exponent(float x);
float power_of_two(int exponent);
int max3(int a, int b, int c);
uint32_t bits_between(int begin, int end);

bool elect_one();

void mbarrier_init(Mbarrier& barrier, int n_arrivals);
void fence_mbarrier_init();
void mbarrier_arrive(Mbarrier& barrier);
void mbarrier_arrive_and_expect(Mbarrier& barrier, int bytes);
void mbarrier_wait(Mbarrier& barrier, uint32_t parity);
bool mbarrier_test(Mbarrier& barrier, uint32_t parity);

void named_barrier_sync(int id, int n_threads);
void named_barrier_arrive(int id, int n_threads);

void fence_async_proxy();

void prefetch_tensor_map(TensorMap const& map);
void tma_load_box(TensorMap const& map, Mbarrier& barrier, void* smem, int const* coords,
                  int n_coords);
template <CacheHint, class... Coords>
void tma_load(TensorMap const& map, Mbarrier& barrier, SmemAddress smem, Coords... coords) {
  int const values[] = {static_cast<int>(coords)...};
  tma_load_box(map, barrier, reinterpret_cast<void*>(smem), values, int(sizeof...(coords)));
}
void tma_store_box(TensorMap const& map, void const* smem, int const* coords, int n_coords);
template <class T, class... Coords>
void tma_store(TensorMap const& map, T const* smem, Coords... coords) {
  int const values[] = {static_cast<int>(coords)...};
  tma_store_box(map, smem, values, int(sizeof...(coords)));
}
void tma_store_commit();
void tma_store_wait(int n_pending);
template <int kPending>
void tma_store_wait() {
  tma_store_wait(kPending);
}
void tma_store_wait_written();

void bulk_load_bytes(void const* global, Mbarrier& barrier, void* smem, int bytes);
template <class T>
void bulk_load(T const* global, Mbarrier& barrier, T* smem, int bytes) {
  bulk_load_bytes(global, barrier, smem, bytes);
}
void bulk_store(float const* smem, float* global, int bytes);
void bulk_reduce_add(float const* smem, float* global, int bytes);

void reduce_add(float4* address, float4 const& values);

int cluster_size();
int cluster_rank();
void cluster_sync();
float load_from_rank(float const* address, int rank);
float4 load_from_rank(float4 const* address, int rank);

void store_matrices(uint32_t const (&words)[4], SmemAddress row);
void load_matrices(uint32_t (&words)[4], SmemAddress row);
inline uint2 load_shared_pair(SmemAddress address) {
  return load(reinterpret_cast<uint2 const*>(address));
}
void copy_captured(SmemAddress smem, void const* captured);
template <int kSmemOffset, int kOffset>
void copy_captured(SmemAddress smem, void const* captured) {
  copy_captured(smem + kSmemOffset, static_cast<char const*>(captured) + kOffset);
}
inline void prefetch(void const*) {}
void copy_or_zeros(SmemAddress smem, void const* global, bool valid);
uint32_t bits_of_group(uint32_t bits, int lane, int n_lanes);
template <int kLanes>
uint32_t bits_of_group(uint32_t bits, int lane) {
  return bits_of_group(bits, lane, kLanes);
}
inline uint32_t rotate_left(uint32_t bits, int n) { return std::rotl(bits, n); }
inline uint32_t rotate_right(uint32_t bits, int n) { return std::rotr(bits, n); }

void mma_fence();
void mma_commit();
void mma_wait(int n_pending);
template <int kPending>
void mma_wait() {
  mma_wait(kPending);
}

void registers_release(int n_registers);
void registers_claim(int n_registers);
template <int kRegisters>
void registers_release() {
  registers_release(kRegisters);
}
template <int kRegisters>
void registers_claim() {
  registers_claim(kRegisters);
}

#endif

}  // namespace pyflash::device
