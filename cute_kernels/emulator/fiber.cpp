#include "cute_kernels/emulator/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace pyflash::emulator {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kStackBytes = 32 * kPage;
// Stacks a power of two apart would put the same local variables of all threads into one set of the cache.
constexpr size_t kStackDistance = kStackBytes + 3 * kPage;
constexpr size_t kColourBytes = 320;
constexpr size_t kColours = 12;

std::byte* map_pages(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::bad_alloc();
  }
  return static_cast<std::byte*>(memory);
}

}  // namespace

#if defined(__x86_64__)

// What a function must preserve lies on the stack while the fiber is suspended.
extern "C" void pyflash_switch_fiber(void** from, void* to);
asm(R"(
.text
.hidden pyflash_switch_fiber
.globl pyflash_switch_fiber
.type pyflash_switch_fiber, @function
pyflash_switch_fiber:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size pyflash_switch_fiber, .-pyflash_switch_fiber
)");

void Fiber::start(std::byte*, std::byte* top, void (*entry)()) {
  constexpr int kSaved = 6;
  auto* words = reinterpret_cast<uint64_t*>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t{15});
  *--words = 0;  // where the caller of `entry` would be; leaves its frame aligned
  *--words = reinterpret_cast<uint64_t>(entry);
  for (int i = 0; i < kSaved; ++i) {
    *--words = 0;
  }
  stack_pointer_ = words;
}

void Fiber::switch_to(Fiber& from, Fiber& to) {
  pyflash_switch_fiber(&from.stack_pointer_, to.stack_pointer_);
}

#else

void Fiber::start(std::byte* bottom, std::byte* top, void (*entry)()) {
  getcontext(&context_);
  context_.uc_stack.ss_sp = bottom;
  context_.uc_stack.ss_size = static_cast<size_t>(top - bottom);
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
}

void Fiber::switch_to(Fiber& from, Fiber& to) { swapcontext(&from.context_, &to.context_); }

#endif

Zeros::Zeros(size_t bytes) : memory_(map_pages(bytes)), size_(bytes) {}

Zeros::~Zeros() { munmap(memory_, size_); }

Stacks::Stacks(int n) : memory_(map_pages(n * kStackDistance)), size_(n * kStackDistance) {
  for (int i = 0; i < n; ++i) {
    mprotect(memory_ + i * kStackDistance, kPage, PROT_NONE);
  }
}

Stacks::~Stacks() { munmap(memory_, size_); }

std::byte* Stacks::bottom(int i) const { return memory_ + i * kStackDistance + kPage; }

std::byte* Stacks::top(int i) const {
  return memory_ + (i + 1) * kStackDistance - i % kColours * kColourBytes;
}

bool Stacks::is_guard(void const* address) const {
  auto const offset = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(memory_);
  return offset < size_ && offset % kStackDistance < kPage;
}

}  // namespace pyflash::emulator
