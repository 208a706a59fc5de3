// The device primitives that kernels use: everything below CuTe's atoms that differs between a GPU and another place to
// run a kernel. Kernels call these and no intrinsic. Under nvcc they are instructions; elsewhere they are functions of
// whatever runs the kernel: see emulator/.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cutlass/numeric_types.h>
#include <cute/config.hpp>

#include "cute_kernels/sites.h"
#include "cute_kernels/tagged.h"

namespace pyflash::device {

#if defined(__CUDACC__)

// Labels the accesses that follow. Nothing on a GPU.
CUTE_DEVICE void at(Site) {}
// This thread has no part in the next access of the site, where others have.
CUTE_DEVICE void leave_out() {}

CUTE_DEVICE int thread_idx() { return threadIdx.x; }
// The index of this thread, read here and now: what depends on it is not computed ahead of time, and takes no registers in
// between.
CUTE_DEVICE int fresh_thread_idx() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(index));
  __builtin_assume(0 <= index && index < 1024);
  return index;
}
CUTE_DEVICE int block_idx() { return blockIdx.x; }

CUTE_DEVICE void sync_threads() { __syncthreads(); }
CUTE_DEVICE void sync_warp() { __syncwarp(); }

CUTE_DEVICE float shfl_xor(float value, int lane_mask) {
  return __shfl_xor_sync(0xffffffffu, value, lane_mask);
}
CUTE_DEVICE uint32_t shfl_xor_bits(uint32_t value, int lane_mask) {
  return __shfl_xor_sync(0xffffffffu, value, lane_mask);
}

// Whether a lane of the warp says so.
CUTE_DEVICE bool any_lane(bool value) { return __any_sync(0xffffffffu, value); }

// One value of global memory.
template <class T>
CUTE_DEVICE T load(T const* address) {
  return *address;
}
template <class T>
CUTE_DEVICE void store(T* address, T value) {
  *address = value;
}

// Closes the group of the cp.async issued by this thread since the last commit.
CUTE_DEVICE void async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Waits until at most the kPending newest groups of this thread are still in flight.
template <int kPending>
CUTE_DEVICE void async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// 2^x, one instruction.
CUTE_DEVICE float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// e^x and ln(x), to the precision of the special-function unit.
CUTE_DEVICE float exp(float x) { return __expf(x); }
CUTE_DEVICE float log(float x) { return __logf(x); }

// a * b and a + b, each rounded by itself. The compiler may round a product and the sum that takes it once, and chooses
// anew in each kernel.
CUTE_DEVICE float rounded_product(float a, float b) { return __fmul_rn(a, b); }
CUTE_DEVICE float rounded_sum(float a, float b) { return __fadd_rn(a, b); }
// a * b + c, rounded once.
CUTE_DEVICE float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }

// 1 / sqrt(x), one instruction.
CUTE_DEVICE float rsqrt(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x of a normal x, one instruction.
CUTE_DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// x, or the nearer of -limit and limit where that is less; NaN stays NaN. Two instructions.
CUTE_DEVICE float clamp(float x, float limit) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;\n" : "=f"(y) : "f"(x), "f"(limit));
  asm("max.NaN.f32 %0, %0, %1;\n" : "+f"(y) : "f"(-limit));
  return y;
}

// Two fp32 rounded to nearest even into one 32-bit register, `lo` in the lower half.
CUTE_DEVICE uint32_t pack2(float lo, float hi, cutlass::half_t) {
  __half2 const packed = __floats2half2_rn(lo, hi);
  return reinterpret_cast<uint32_t const&>(packed);
}
CUTE_DEVICE uint32_t pack2(float lo, float hi, cutlass::bfloat16_t) {
  __nv_bfloat162 const packed = __floats2bfloat162_rn(lo, hi);
  return reinterpret_cast<uint32_t const&>(packed);
}
// The two of a register, that of the lower half first.
CUTE_DEVICE float2 unpack2(uint32_t pair, cutlass::half_t) {
  return __half22float2(reinterpret_cast<__half2 const&>(pair));
}
CUTE_DEVICE float2 unpack2(uint32_t pair, cutlass::bfloat16_t) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

// p - p t^2 of two p and two t, with t^2 rounded: two instructions, since a product and a difference become one. NOTE: of bf16 ptxas
// negates no operand of an fma for nothing.
CUTE_DEVICE uint32_t less_square(uint32_t p, uint32_t t, cutlass::half_t) {
  __half2 const& of_p = reinterpret_cast<__half2 const&>(p);
  __half2 const& of_t = reinterpret_cast<__half2 const&>(t);
  __half2 const less = __hsub2(of_p, __hmul2(__hmul2(of_t, of_t), of_p));
  return reinterpret_cast<uint32_t const&>(less);
}
CUTE_DEVICE uint32_t less_square(uint32_t p, uint32_t t, cutlass::bfloat16_t) {
  __nv_bfloat162 const& of_p = reinterpret_cast<__nv_bfloat162 const&>(p);
  __nv_bfloat162 const& of_t = reinterpret_cast<__nv_bfloat162 const&>(t);
  __nv_bfloat162 const less = __hsub2(of_p, __hmul2(__hmul2(of_t, of_t), of_p));
  return reinterpret_cast<uint32_t const&>(less);
}

// Each bit is what at least two of the three have.
CUTE_DEVICE uint32_t majority(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xe8;\n" : "=r"(bits) : "r"(a), "r"(b), "r"(c));
  return bits;
}
// The bits of a where those of `which` are set, and else those of b.
CUTE_DEVICE uint32_t bits_of_either(uint32_t which, uint32_t a, uint32_t b) {
  uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xca;\n" : "=r"(bits) : "r"(which), "r"(a), "r"(b));
  return bits;
}

// Four of the eight bytes of a, then b, by their numbers, of 4 bits each. A number + 8: eight times the sign of the byte.
CUTE_DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t numbers) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;\n" : "=r"(bytes) : "r"(a), "r"(b), "r"(numbers));
  return bytes;
}

// For each of two bytes of four, the upper or the lower two, 16 ones where it is at most a limit of 0 to 255, and else zeros. In
// fp16 0x6400 is 1024, and the numbers that follow are integers: two instructions.
template <bool kUpper>
CUTE_DEVICE uint32_t at_most(uint32_t bytes, uint32_t limit) {
  uint32_t const numbers = permute_bytes(bytes, 0x64646464u, kUpper ? 0x4342 : 0x4140);
  uint32_t const limits = 0x64006400u + limit * 0x00010001u;
  return __hle2_mask(reinterpret_cast<__half2 const&>(numbers),
                     reinterpret_cast<__half2 const&>(limits));
}

// Two e4m3 of four in a register, the upper or the lower two, as a pair of elements, exactly; NaN stays NaN.
template <bool kUpper>
CUTE_DEVICE uint32_t unpack_e4m3(uint32_t bytes, cutlass::half_t) {
  uint32_t unpacked;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if constexpr (kUpper) {
    asm("{\n"
        ".reg .b16 lower, upper;\n"
        "mov.b32 {lower, upper}, %1;\n"
        "cvt.rn.f16x2.e4m3x2 %0, upper;\n"
        "}\n"
        : "=r"(unpacked)
        : "r"(bytes));
  } else {
    asm("{\n"
        ".reg .b16 lower, upper;\n"
        "mov.b32 {lower, upper}, %1;\n"
        "cvt.rn.f16x2.e4m3x2 %0, lower;\n"
        "}\n"
        : "=r"(unpacked)
        : "r"(bytes));
  }
#else
  // Exponents of the same bits are 2^8 apart in the two formats.
  uint32_t const pair = __byte_perm(bytes, 0, kUpper ? 0x4342 : 0x4140);
  uint32_t const magnitudes = pair & 0x007f007f;
  uint32_t const nan = ((magnitudes + 0x00010001) & 0x00800080) >> 7;  // 1 of 0x7f alone
  unpacked = (pair & 0x00800080) << 8 | magnitudes << 7;
  asm("mul.rn.f16x2 %0, %0, %1;\n" : "+r"(unpacked) : "r"(0x5c005c00));  // 2^8
  unpacked |= nan * 0x7fff;
#endif
  return unpacked;
}
template <bool kUpper>
CUTE_DEVICE uint32_t unpack_e4m3(uint32_t bytes, cutlass::bfloat16_t) {
  uint32_t const halves = unpack_e4m3<kUpper>(bytes, cutlass::half_t{});
  float2 const values = __half22float2(reinterpret_cast<__half2 const&>(halves));
  return pack2(values.x, values.y, cutlass::bfloat16_t{});
}

// Bytes 0, 2, 1 and 3 of a register.
CUTE_DEVICE uint32_t swap_inner_bytes(uint32_t bytes) { return __byte_perm(bytes, 0, 0x3120); }

// Adds to a global float atomically, in any order.
CUTE_DEVICE void reduce_add(float* address, float value) {
  asm volatile("red.global.add.f32 [%0], %1;\n" ::"l"(address), "f"(value) : "memory");
}

// Reads a number in global memory until it is at most `bound`, and returns it. What was written before it was stored is visible
// afterwards, to TMA too. NaN is no bound.
CUTE_DEVICE float wait_until_at_most(float const* address, float bound) {
  float value;
  do {
    asm volatile("ld.acquire.gpu.global.f32 %0, [%1];\n" : "=f"(value) : "l"(address) : "memory");
  } while (value > bound);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.global;\n" ::: "memory");
#endif
  return value;
}
// For wait_until_at_most of any CTA, behind everything that this thread has written or waited for.
CUTE_DEVICE void store_release(float* address, float value) {
  asm volatile("st.release.gpu.global.f32 [%0], %1;\n" ::"l"(address), "f"(value) : "memory");
}
// Adds to a global number and returns what it was: behind everything that this thread has written or waited for, and before what it
// reads next.
CUTE_DEVICE float add_release(float* address, float value) {
  float before;
  asm volatile("atom.acq_rel.gpu.global.add.f32 %0, [%1], %2;\n"
               : "=f"(before)
               : "l"(address), "f"(value)
               : "memory");
  return before;
}
// The same behind what all threads of the CTA have added, of which this one was told.
CUTE_DEVICE float add_release_of_cta(float* address, float value) {
  return add_release(address, value);
}

// Tagged numbers in global memory.
CUTE_DEVICE void store_tagged(Tagged* address, Tagged const& value) {
  asm volatile(
      "{\n"
      ".reg .b128 value;\n"
      ".reg .b64 numbers;\n"
      "mov.b64 numbers, {%2, %3};\n"
      "mov.b128 value, {%1, numbers};\n"
      "st.relaxed.gpu.global.b128 [%0], value;\n"
      "}\n" ::"l"(address),
      "l"(value.tag), "f"(value.x), "f"(value.y)
      : "memory");
}
CUTE_DEVICE Tagged load_tagged(Tagged const* address) {
  Tagged value;
  asm volatile(
      "{\n"
      ".reg .b128 value;\n"
      ".reg .b64 numbers;\n"
      "ld.relaxed.gpu.global.b128 value, [%3];\n"
      "mov.b128 {%0, numbers}, value;\n"
      "mov.b64 {%1, %2}, numbers;\n"
      "}\n"
      : "=l"(value.tag), "=f"(value.x), "=f"(value.y)
      : "l"(address)
      : "memory");
  return value;
}
// Reads some until all have the tag.
template <int kN>
CUTE_DEVICE void load_when_tagged(Tagged (&values)[kN], Tagged const* const (&addresses)[kN],
                                  uint64_t tag) {
  bool all;
  do {
    CUTE_UNROLL
    for (int i = 0; i < kN; ++i) {
      values[i] = load_tagged(addresses[i]);
    }
    uint64_t different = 0;
    CUTE_UNROLL
    for (Tagged const& value : values) {
      different |= value.tag ^ tag;
    }
    all = different == 0;
  } while (!all);
}

// Programmatic dependent launch, of devices that have it. A kernel that is launched while the one before it in the stream
// still runs waits here until that one has ended and what it wrote is visible; it touches no global memory before.
CUTE_DEVICE void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
// A kernel that is launched so, after this one, may start once all CTAs of this one got here.
CUTE_DEVICE void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n");
#endif
}

// The CTA's dynamic shared memory.
template <class SharedStorage>
CUTE_DEVICE SharedStorage& dynamic_smem() {
  extern __shared__ __align__(1024) char smem[];
  return *reinterpret_cast<SharedStorage*>(smem);
}

#else

void at(Site site);
void leave_out();

int thread_idx();
int fresh_thread_idx();
int block_idx();

void sync_threads();
void sync_warp();
float shfl_xor(float value, int lane_mask);
uint32_t shfl_xor_bits(uint32_t value, int lane_mask);
bool any_lane(bool value);

void load(void const* address, void* value, int bytes);
template <class T>
T load(T const* address) {
  T value;
  load(address, &value, sizeof(T));
  return value;
}
void store(void* address, void const* value, int bytes);
template <class T>
void store(T* address, T value) {
  store(address, &value, sizeof(T));
}

void async_commit();
void async_wait(int n_pending);
template <int kPending>
void async_wait() {
  async_wait(kPending);
}

float exp2(float x);
float exp(float x);
float log(float x);
float rounded_product(float a, float b);
float rounded_sum(float a, float b);
inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
float rsqrt(float x);
inline float reciprocal(float x) { return 1.f / x; }
float clamp(float x, float limit);

uint32_t pack2(float lo, float hi, cutlass::half_t);
uint32_t pack2(float lo, float hi, cutlass::bfloat16_t);
float2 unpack2(uint32_t pair, cutlass::half_t);
float2 unpack2(uint32_t pair, cutlass::bfloat16_t);
template <class Element>
uint32_t less_square(uint32_t p, uint32_t t, Element) {
  float2 const of_p = unpack2(p, Element{}), of_t = unpack2(t, Element{});
  float2 const squares = unpack2(pack2(of_t.x * of_t.x, of_t.y * of_t.y, Element{}), Element{});
  return pack2(fma(-squares.x, of_p.x, of_p.x), fma(-squares.y, of_p.y, of_p.y), Element{});
}
uint32_t unpack_e4m3(uint32_t pair, cutlass::half_t);
uint32_t unpack_e4m3(uint32_t pair, cutlass::bfloat16_t);
template <bool kUpper, class Element>
uint32_t unpack_e4m3(uint32_t bytes, Element) {
  return unpack_e4m3(kUpper ? bytes >> 16 : bytes, Element{});
}
uint32_t swap_inner_bytes(uint32_t bytes);
uint32_t majority(uint32_t a, uint32_t b, uint32_t c);
uint32_t bits_of_either(uint32_t which, uint32_t a, uint32_t b);
uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t numbers);
uint32_t at_most(uint32_t pair, uint32_t limit);
template <bool kUpper>
uint32_t at_most(uint32_t bytes, uint32_t limit) {
  return at_most(kUpper ? bytes >> 16 : bytes, limit);
}

void reduce_add(float* address, float value);
float wait_until_at_most(float const* address, float bound);
void store_release(float* address, float value);
float add_release(float* address, float value);
float add_release_of_cta(float* address, float value);
void store_tagged(Tagged* address, Tagged const& value);
Tagged load_when_tagged(Tagged const* address, uint64_t tag);
template <int kN>
void load_when_tagged(Tagged (&values)[kN], Tagged const* const (&addresses)[kN], uint64_t tag) {
  for (int i = 0; i < kN; ++i) {
    values[i] = load_when_tagged(addresses[i], tag);
  }
}

void wait_for_previous_kernel();
void launch_dependents();

void* dynamic_smem_address();
template <class SharedStorage>
SharedStorage& dynamic_smem() {
  return *static_cast<SharedStorage*>(dynamic_smem_address());
}

#endif

// Reads an int of global memory, for Sequences.
struct Loader {
  CUTE_DEVICE int operator()(int const* address) const { return load(address); }
};

}  // namespace pyflash::device
