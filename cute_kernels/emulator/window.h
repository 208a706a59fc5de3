// A range of addresses that a kernel computes with and that nothing may touch: what lies there is kept elsewhere, and an
// access that did not come through the machine is a fault.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pyflash::emulator {

class Window {
 public:
  // `bytes` from an address aligned to 2 MiB plus `misalignment`, with a margin on both sides that belongs to it.
  explicit Window(size_t bytes, size_t misalignment = 0);
  ~Window();
  Window(Window&& other) noexcept;
  Window& operator=(Window&&) = delete;

  std::byte* start() const { return start_; }
  // Whether the address lies in the window or its margins.
  bool contains(void const* address) const {
    return reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(memory_) < size_;
  }
  int64_t offset(void const* address) const {
    return static_cast<std::byte const*>(address) - start_;
  }

 private:
  std::byte* memory_;
  size_t size_;
  std::byte* start_;
};

}  // namespace pyflash::emulator
