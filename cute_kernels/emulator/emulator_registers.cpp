// Registers: those of warpgroup MMAs in flight, and those that move between warps.
#include <algorithm>
#include <cstring>

#include "cute_kernels/emulator/emulator.h"
#include "cute_kernels/emulator/float_vectors.h"

namespace pyflash::emulator {

namespace {

constexpr int kMinRegisters = 24;
constexpr int kMaxRegisters = 256;
constexpr int kRegisterUnit = 8;

size_t bytes_of_d(WarpgroupMma const& mma) { return mma.n / 2 * sizeof(float); }
constexpr size_t kBytesOfA = 4 * sizeof(uint32_t);

// Whether one of the words, four or a multiple of it, is `value`.
bool holds(uint32_t const* first, uint32_t const* last, uint32_t value) {
  Words equal{};
  for (; first != last; first += kWidth) {
    Words words;
    std::memcpy(&words, first, sizeof words);
    equal |= reinterpret_cast<Words>(words == value);
  }
  return (equal[0] | equal[1] | equal[2] | equal[3]) != 0;
}

}  // namespace

void Emulator::register_touched(void const* address, int bytes, bool write) {
  Thread const& thread = current();
  RegisterWatch const& watch = thread.watch;
  auto const* const begin = static_cast<std::byte const*>(address);
  for (int i = 0; i < watch.n_ranges; ++i) {
    auto const& range = watch.ranges[i];
    if (begin < range.end && begin + bytes > range.begin) {
      findings_.add({.kind = "register_in_flight",
                     .memory = range.accumulator ? "accumulators" : "A registers",
                     .offset = begin - range.begin,
                     .bytes = bytes,
                     .access = {thread.site, thread.index, write ? "write" : "read"},
                     .other = {range.site, thread.index, "wgmma"}});
      return;
    }
  }
}

// Registers that were written since the thread's last fence.
void Emulator::check_fences(Warp& warp) {
  for (Thread const* lane : warp.lanes) {
    RegisterWatch const& watch = lane->watch;
    WarpgroupMma const& mma = *lane->warpgroup_mma;
    auto const check = [&](void const* registers, size_t bytes, char const* what) {
      auto const offset =
          static_cast<size_t>(static_cast<std::byte const*>(registers) - watch.stack);
      if (registers == nullptr || offset + bytes > watch.stack_bytes) {
        return;
      }
      auto const* const first = watch.written + offset / sizeof(uint32_t);
      auto const* const last = first + bytes / sizeof(uint32_t);
      if (holds(first, last, watch.n_fences)) {
        findings_.add({.kind = "missing_mma_fence",
                       .memory = what,
                       .access = {lane->site, lane->index, "wgmma"},
                       .detail = "written after the last wgmma.fence"});
      }
    };
    check(mma.a, kBytesOfA, "A registers");
    check(mma.d, bytes_of_d(mma), "accumulators");
  }
}

void Emulator::watch_registers(Warp& warp) {
  for (Thread* lane : warp.lanes) {
    RegisterWatch& watch = lane->watch;
    WarpgroupMma const& mma = *lane->warpgroup_mma;
    auto const add = [&](void const* registers, size_t bytes, bool accumulator) {
      auto const* const begin = static_cast<std::byte const*>(registers);
      for (int i = 0; i < watch.n_ranges; ++i) {
        RegisterWatch::Range& range = watch.ranges[i];
        if (begin >= range.begin && begin + bytes <= range.end) {
          return;
        }
        // The A operands of one product follow each other.
        if (!accumulator && !range.accumulator && begin == range.end) {
          range.end += bytes;
          return;
        }
      }
      if (watch.n_ranges < RegisterWatch::kMaxRanges) {
        watch.ranges[watch.n_ranges++] = {begin, begin + bytes, accumulator, lane->site};
      }
    };
    if (mma.a != nullptr) {
      add(mma.a, kBytesOfA, false);
    }
    add(mma.d, bytes_of_d(mma), true);
  }
}

void Emulator::set_registers(int n_registers, bool claim) {
  current().registers = {n_registers, claim};
  stop(Stop::kRegisters);
}

// setmaxnreg
bool Emulator::meet_registers(Warp& warp) {
  auto const [n, claim] = warp.lanes[0]->registers;
  Thread const& first = *warp.lanes[0];
  auto const wrong = [&](std::string const& detail) {
    findings_.add({.kind = "register_budget",
                   .access = {first.site, first.index, "setmaxnreg"},
                   .detail = detail});
  };
  if (warp.registers == 0) {
    warp.registers = kernel_.registers;
  }
  if (n % kRegisterUnit != 0 || n < kMinRegisters || n > kMaxRegisters) {
    wrong(std::to_string(n) + " registers: expected a multiple of 8 from 24 to 256");
    return true;
  }
  if (claim ? n < warp.registers : n > warp.registers) {
    wrong(std::string(claim ? "claims " : "releases down to ") + std::to_string(n) +
          " registers, and has " + std::to_string(warp.registers));
    return true;
  }
  if (claim) {
    return take_registers(warp, n);
  }
  cta().free_registers += (warp.registers - n) * kLanes;
  warp.registers = n;
  for (Warp& other : warps()) {
    if (other.stop == Stop::kRegisters && &other != &warp && &cta_of(other) == &cta() &&
        take_registers(other, other.lanes[0]->registers.n)) {
      resume(other);
    }
  }
  return true;
}

bool Emulator::take_registers(Warp& warp, int n) {
  int const needed = (n - warp.registers) * kLanes;
  if (needed > cta().free_registers) {
    return false;
  }
  cta().free_registers -= needed;
  warp.registers = n;
  return true;
}

}  // namespace pyflash::emulator
