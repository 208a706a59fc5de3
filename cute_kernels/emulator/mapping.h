// Tensors that the parameters of a kernel point to, as the emulator has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cute_kernels/emulator/emulator.h"

namespace pyflash::emulator {

struct Dim {
  int64_t extent;
  int64_t stride;
};

// What a kernel does with a tensor. Of an output each element is written once, of a partial one at most once; reductions add to an
// accumulator.
enum class Role { kInput, kOutput, kPartialOutput, kAccumulator, kRecycledAccumulator };

class Mapping {
 public:
  explicit Mapping(Emulator& emulator) : emulator_(emulator) {}

  // The pointer becomes the address that the kernel computes with. NOTE: a tensor without elements may be nowhere.
  template <class T>
  void map(char const* name, T*& pointer, int element_bytes, std::vector<Dim> const& dims,
           Role role) {
    // As torch aligns tensors on the CPU: what an address is beside that is kept, so that sectors are those of a GPU.
    constexpr uintptr_t kAlignment = 64;
    if (pointer == nullptr) {
      return;
    }
    GlobalTensor tensor{
        .name = name,
        .data = static_cast<std::byte*>(const_cast<void*>(static_cast<void const*>(pointer))),
        .shape = {},
        .strides = {},
        .element_bytes = element_bytes,
        .misalignment = static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer) % kAlignment),
        .output = role == Role::kOutput || role == Role::kPartialOutput,
        .is_partial = role == Role::kPartialOutput,
        .accumulator = role == Role::kAccumulator || role == Role::kRecycledAccumulator,
        .is_recycled = role == Role::kRecycledAccumulator};
    for (Dim const& dim : dims) {
      tensor.shape.push_back(dim.extent);
      tensor.strides.push_back(dim.stride);
    }
    pointer = reinterpret_cast<T*>(emulator_.add_tensor(tensor));
  }

 private:
  Emulator& emulator_;
};

}  // namespace pyflash::emulator
