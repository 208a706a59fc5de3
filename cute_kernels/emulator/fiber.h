// Cooperative threads: each emulated CUDA thread is one, with a stack of its own. On x86-64 a switch is ten
// instructions; elsewhere it is ucontext's, with a system call.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace pyflash::emulator {

class Fiber {
 public:
  // Runs `entry`, which must not return, on this stack once it is switched to. `top`: end of the stack, exclusive.
  void start(std::byte* bottom, std::byte* top, void (*entry)());

  // Suspends `from`, which runs now, and resumes `to`.
  static void switch_to(Fiber& from, Fiber& to);

 private:
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
};

// Stacks of equal size, a guard page below each.
class Stacks {
 public:
  explicit Stacks(int n);
  ~Stacks();
  Stacks(Stacks const&) = delete;
  Stacks& operator=(Stacks const&) = delete;

  std::byte* bottom(int i) const;
  std::byte* top(int i) const;
  bool is_guard(void const* address) const;

 private:
  std::byte* memory_;
  size_t size_;
};

// Zeros: a page of them takes memory from when something is written there.
class Zeros {
 public:
  explicit Zeros(size_t bytes);
  ~Zeros();
  Zeros(Zeros const&) = delete;
  Zeros& operator=(Zeros const&) = delete;

  std::byte* data() const { return memory_; }

 private:
  std::byte* memory_;
  size_t size_;
};

}  // namespace pyflash::emulator
