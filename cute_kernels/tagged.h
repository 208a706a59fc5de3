// Numbers that a CTA hands to another through global memory.
#pragma once

#include <cstdint>

namespace pyflash::device {

// Two numbers and a tag, 16 bytes that are stored and read at once: whoever reads the tag has the numbers.
struct alignas(16) Tagged {
  uint64_t tag;
  float x;
  float y;
};

}  // namespace pyflash::device
