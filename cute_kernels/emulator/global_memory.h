// Global tensors: every access is checked against the elements of a tensor, not against a range of addresses, so that
// the bytes between the rows of a view are out of bounds, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cute_kernels/emulator/findings.h"
#include "cute_kernels/emulator/window.h"

namespace pyflash::emulator {

struct GlobalTensor {
  std::string name;
  std::byte* data;  // the first element
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements
  int element_bytes;
  int64_t misalignment;  // bytes from an address that a GPU's allocator would return
  bool output;           // written by the kernel, each element by one thread; others are only read
  bool is_partial = false;   // an output of which some elements may stay unwritten
  bool accumulator = false;  // reductions of any threads add to it
  bool is_recycled = false;  // an accumulator that threads clear
};

class GlobalMemory {
 public:
  // In place of a writer's number: it adds.
  static constexpr int64_t kReducer = -2;

  // Returns what a kernel takes for the address of the tensor's first element.
  uintptr_t add(GlobalTensor const& tensor);

  // The name of the tensor around the address; empty if there is none.
  std::string name_at(void const* address) const;
  bool contains(void const* address) const { return find(address) != nullptr; }

  // Where the bytes are, or nullptr, with a finding, where they are not all of a tensor's. An address that is no multiple
  // of `alignment` is a finding too. `writer`: a number of the thread among all CTAs' for a write, kReducer, or -1
  // for a read.
  std::byte* translate(void const* address, int bytes, int alignment, int64_t writer,
                       Access const& access, Findings& findings);

  // Elements of outputs that no thread wrote.
  void check_written(Findings& findings) const;

 private:
  struct Tensor {
    GlobalTensor description;
    Window window;
    std::vector<uint32_t> elements;  // by offset: no element, not written, or kFirstWriter + writer
  };

  Tensor const* find(void const* address) const;
  static void check_writers(Tensor& tensor, int64_t first, int64_t last, int64_t writer,
                            Access const& access, Findings& findings);
  static std::string where(Tensor const& tensor, int64_t offset);

  std::vector<Tensor> tensors_;
};

}  // namespace pyflash::emulator
