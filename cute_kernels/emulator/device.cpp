// The device primitives of an emulated kernel.
#include "cute_kernels/device.h"

#include <cmath>

#include "cute_kernels/emulator/device.h"

namespace pyflash::device {

using emulator::machine;

void at(Site site) { machine->at(static_cast<int>(site)); }
void leave_out() { machine->leave_out(); }

int thread_idx() { return machine->thread_idx(); }
int block_idx() { return machine->block_idx(); }

void sync_threads() { machine->sync_threads(); }
void sync_warp() { machine->sync_warp(); }
float shfl_xor(float value, int lane_mask) { return machine->shfl_xor(value, lane_mask); }
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

void* dynamic_smem_address() { return machine->dynamic_smem(); }

}  // namespace pyflash::device

// CuTe's operations that have no host body assert so; that ends the launch, not the process.
extern "C" __attribute__((visibility("hidden"), noreturn)) void __assert_fail(
    char const* assertion, char const*, unsigned int, char const*) noexcept {
  pyflash::emulator::machine->fail(assertion);
  __builtin_trap();
}
