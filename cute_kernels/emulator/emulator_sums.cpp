// Sums in global memory: what threads add to them, and the turns in which CTAs do.
#include <cmath>
#include <cstring>

#include "cute_kernels/emulator/emulator.h"

namespace pyflash::emulator {

void Emulator::add_floats(std::byte* sums, std::byte const* terms, int bytes) {
  for (int i = 0; i < bytes; i += static_cast<int>(sizeof(float))) {
    float sum, term;
    std::memcpy(&sum, sums + i, sizeof sum);
    std::memcpy(&term, terms + i, sizeof term);
    sum += term;
    std::memcpy(sums + i, &sum, sizeof sum);
  }
}

void Emulator::reduce_add(void* global, void const* values, int bytes) {
  Thread const& thread = current();
  Access const access{thread.site, thread.index, "reduction"};
  count_traffic(Path::kGlobalStore, global, bytes);
  if (auto* to = translate(global, bytes, bytes, GlobalMemory::kReducer, access)) {
    add_floats(to, static_cast<std::byte const*>(values), bytes);
    check_turn(global, access);
  }
}

// What the running thread adds to sums in turns.
void Emulator::check_turn(void const* sums, Access const& access) {
  if (sums_in_turns_.empty() || global_.name_at(sums) != sums_in_turns_) {
    return;
  }
  Thread const& thread = current();
  if (auto const before =
          turns_.add(sums, cta_of_launch(), accessor(thread, thread.site), access)) {
    findings_.add({.kind = "unordered_reduction",
                   .memory = sums_in_turns_,
                   .access = access,
                   .other = *before});
  }
}

// NOTE: CTAs run one after another, in the order of their indices: what no earlier one gave never comes.
float Emulator::wait_until_at_most(float const* address, float bound) {
  Thread const& thread = current();
  Access const access{thread.site, thread.index, "read of a turn"};
  float value = bound;
  if (auto const* from = translate(address, sizeof value, sizeof value, -1, access)) {
    std::memcpy(&value, from, sizeof value);
  }
  if (value > bound) {
    findings_.add({.kind = "deadlock",
                   .memory = global_.name_at(address),
                   .access = access,
                   .detail = "a CTA waits for a turn that no CTA before it gave"});
    abort();
  }
  turns_.take(address, std::isinf(value), cta_of_launch(), accessor(thread, thread.site));
  return value;
}

void Emulator::store_release(float* address, float value) {
  Thread const& thread = current();
  turns_.give(address, cta_of_launch(), accessor(thread, thread.site));
  Access const access{thread.site, thread.index, "write of a turn"};
  if (thread.unwritten.thread >= 0) {
    findings_.add({.kind = "unordered_reduction",
                   .memory = global_.name_at(address),
                   .access = access,
                   .other = thread.unwritten});
  }
  if (auto* to = translate(address, sizeof value, sizeof value, GlobalMemory::kReducer, access)) {
    std::memcpy(to, &value, sizeof value);
  }
}

float Emulator::add_release(float* address, float value, bool of_cta) {
  Thread const& thread = current();
  Access const access{thread.site, thread.index, "count of what is added"};
  for (Thread const& other : threads()) {
    bool const is_behind = &other == &thread || (of_cta && &cta_of(other) == &cta());
    if (is_behind && other.unwritten.thread >= 0) {
      findings_.add({.kind = "unordered_reduction",
                     .memory = global_.name_at(address),
                     .access = access,
                     .other = other.unwritten});
    }
  }
  float before = 0;
  if (auto* to = translate(address, sizeof value, sizeof value, GlobalMemory::kReducer, access)) {
    std::memcpy(&before, to, sizeof before);
    float const after = before + value;
    std::memcpy(to, &after, sizeof after);
  }
  return before;
}

}  // namespace pyflash::emulator
