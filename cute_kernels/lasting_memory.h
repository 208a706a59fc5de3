// Memory of a device that outlives a call, as kernel libraries get it from CUDA. NOTE: not torch's own, which may be of a pool that is
// private to a graph: nothing of it may outlive what the graph knows.
#pragma once

#include <cstdint>

namespace pyflash {

struct LastingMemory {
  void* data = nullptr;
  void* last_use = nullptr;  // a cudaEvent_t
};

// What a kernel library does with it on the current device. Nothing waits; each returns a cudaError_t.
struct LastingMemoryCalls {
  // A number of `stream` that no other stream of the process has, before or after. Refuses one that captures a graph.
  int (*number_of)(void* stream, uint64_t* number);
  // Memory that may be used in the order of `stream`.
  int (*take)(int64_t bytes, void* stream, LastingMemory* memory);
  // Notes that what is in `stream` so far uses it.
  int (*note_use)(LastingMemory const& memory, void* stream);
  // Frees it in the order of `stream`, once the use that was noted last is over.
  int (*give_back)(LastingMemory const& memory, void* stream);
};

}  // namespace pyflash
