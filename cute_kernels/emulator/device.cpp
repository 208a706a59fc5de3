// The device primitives of an emulated kernel.
#include "cute_kernels/device.h"

#include <bit>
#include <cmath>

#include "cute_kernels/emulator/device.h"

namespace pyflash::device {

using emulator::machine;

void at(Site site) { machine->at(static_cast<int>(site)); }
void leave_out() { machine->leave_out(); }

int thread_idx() { return machine->thread_idx(); }
int fresh_thread_idx() { return machine->thread_idx(); }
int block_idx() { return machine->block_idx(); }

void sync_threads() { machine->sync_threads(); }
void sync_warp() { machine->sync_warp(); }
float shfl_xor(float value, int lane_mask) { return machine->shfl_xor(value, lane_mask); }
uint32_t shfl_xor_bits(uint32_t value, int lane_mask) {
  return std::bit_cast<uint32_t>(machine->shfl_xor(std::bit_cast<float>(value), lane_mask));
}
bool any_lane(bool value) { return machine->any_lane(value); }

void load(void const* address, void* value, int bytes) { machine->copy(address, value, bytes); }
void store(void* address, void const* value, int bytes) { machine->copy(value, address, bytes); }

void async_commit() { machine->async_commit(); }
void async_wait(int n_pending) { machine->async_wait(n_pending); }

float exp2(float x) {
  machine->count_exponential();
  return std::exp2(x);
}
float exp(float x) {
  machine->count_exponential();
  return std::exp(x);
}
float log(float x) { return std::log(x); }
float rounded_product(float a, float b) { return a * b; }
float rounded_sum(float a, float b) { return a + b; }
float rsqrt(float x) {
  machine->count_reciprocal();
  return 1.f / std::sqrt(x);
}

float clamp(float x, float limit) { return x > limit ? limit : x < -limit ? -limit : x; }

template <class Element>
uint32_t pack(float lo, float hi) {
  return Element(lo).raw() | uint32_t(Element(hi).raw()) << 16;
}
uint32_t pack2(float lo, float hi, cutlass::half_t) { return pack<cutlass::half_t>(lo, hi); }
uint32_t pack2(float lo, float hi, cutlass::bfloat16_t) {
  return pack<cutlass::bfloat16_t>(lo, hi);
}

template <class Element>
float2 unpack(uint32_t pair) {
  return {float(Element::bitcast(uint16_t(pair))), float(Element::bitcast(uint16_t(pair >> 16)))};
}
float2 unpack2(uint32_t pair, cutlass::half_t) { return unpack<cutlass::half_t>(pair); }
float2 unpack2(uint32_t pair, cutlass::bfloat16_t) { return unpack<cutlass::bfloat16_t>(pair); }

float number_of_e4m3(uint32_t bits) {
  uint32_t const magnitude = bits & 0x7f;
  float const value = magnitude == 0x7f ? NAN
                      : magnitude < 8
                          ? std::ldexp(float(magnitude), -9)
                          : std::ldexp(float(8 + magnitude % 8), int(magnitude / 8) - 10);
  return bits & 0x80 ? -value : value;
}
uint32_t unpack_e4m3(uint32_t pair, cutlass::half_t) {
  return pack<cutlass::half_t>(number_of_e4m3(pair), number_of_e4m3(pair >> 8));
}
uint32_t unpack_e4m3(uint32_t pair, cutlass::bfloat16_t) {
  return pack<cutlass::bfloat16_t>(number_of_e4m3(pair), number_of_e4m3(pair >> 8));
}
uint32_t swap_inner_bytes(uint32_t bytes) {
  return (bytes & 0xff0000ff) | (bytes >> 8 & 0xff00) | (bytes << 8 & 0xff0000);
}
uint32_t majority(uint32_t a, uint32_t b, uint32_t c) { return (a & b) | ((a | b) & c); }
uint32_t bits_of_either(uint32_t which, uint32_t a, uint32_t b) {
  return (which & a) | (~which & b);
}
uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t numbers) {
  uint64_t const bytes = a | uint64_t(b) << 32;
  uint32_t permuted = 0;
  for (int i = 0; i < 4; ++i) {
    uint32_t const number = numbers >> 4 * i & 0xf;
    auto const byte = uint8_t(bytes >> 8 * (number & 7));
    permuted |= (number < 8 ? byte : byte < 0x80 ? 0u : 0xffu) << 8 * i;
  }
  return permuted;
}
uint32_t at_most(uint32_t pair, uint32_t limit) {
  return ((pair & 0xff) <= limit ? 0x0000ffffu : 0) |
         ((pair >> 8 & 0xff) <= limit ? 0xffff0000u : 0);
}

void* dynamic_smem_address() { return machine->dynamic_smem(); }

}  // namespace pyflash::device

// CuTe's operations that have no host body assert so; that ends the launch, not the process.
extern "C" __attribute__((visibility("hidden"), noreturn)) void __assert_fail(
    char const* assertion, char const*, unsigned int, char const*) noexcept {
  pyflash::emulator::machine->fail(assertion);
  __builtin_trap();
}
