#include "cute_kernels/emulator/window.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace pyflash::emulator {

namespace {

constexpr size_t kAlignment = size_t{2} << 20;
constexpr size_t kMargin = size_t{64} << 20;

}  // namespace

Window::Window(size_t bytes, size_t misalignment)
    : size_(bytes + misalignment + 2 * kMargin + kAlignment) {
  void* const memory =
      mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::bad_alloc();
  }
  memory_ = static_cast<std::byte*>(memory);
  auto const first = reinterpret_cast<uintptr_t>(memory_) + kMargin;
  auto const aligned = (first + kAlignment - 1) / kAlignment * kAlignment;
  start_ = reinterpret_cast<std::byte*>(aligned + misalignment);
}

Window::Window(Window&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      start_(other.start_) {}

Window::~Window() {
  if (memory_ != nullptr) {
    munmap(memory_, size_);
  }
}

}  // namespace pyflash::emulator
