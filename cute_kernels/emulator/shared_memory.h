// The shared memory of one CTA and who touched it last: finds races, reads of bytes in flight or never written, and
// accesses past the end.
//
// Only sync_threads() orders the threads of a CTA, and sync_warp() those of a warp. Two accesses by different threads, one
// of them a write, are a race unless one of these stands between them: two counters, of the CTA's barriers and of the
// warp's, tell exactly. A cp.async writes at some time from its issue until its thread has waited for it; what others do
// with the bytes in between is wrong whatever they see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cute_kernels/emulator/findings.h"
#include "cute_kernels/emulator/window.h"

namespace pyflash::emulator {

// Stands for a byte that has no value: NaN in every 16-bit and 32-bit type.
inline constexpr std::byte kPoison{0xff};

// Who accesses, and when.
struct Accessor {
  int thread;
  int site;
  uint32_t n_barriers;    // that the CTA has passed
  uint32_t n_warp_syncs;  // that the thread's warp has passed
};

class SharedMemory {
 public:
  // Bytes that accesses are told apart by; no access is smaller.
  static constexpr int kCellBytes = 4;

  SharedMemory(int bytes, Findings& findings);

  // As a new CTA finds it.
  void reset();

  void* address() const { return window_.start(); }
  bool contains(void const* address) const { return window_.contains(address); }
  int64_t offset(void const* address) const { return window_.offset(address); }

  // Each returns where the bytes are, or nullptr, with a finding, where they are not all inside.
  std::byte const* read(int64_t offset, int bytes, Accessor const& who);
  std::byte* write(int64_t offset, int bytes, Accessor const& who);
  bool begin_async_write(int64_t offset, int bytes, Accessor const& who);
  std::byte* end_async_write(int64_t offset, int bytes, Accessor const& who);

 private:
  static constexpr int16_t kNobody = -1;

  struct Event {
    uint32_t n_barriers = 0;
    uint32_t n_warp_syncs = 0;
    int16_t thread = kNobody;
    int8_t site = -1;
  };

  struct Cell {
    Event write;
    Event read;                      // the first after the last barrier
    int16_t other_reader = kNobody;  // one more, of another warp if there is one
    int8_t other_site = -1;
    bool by_async = false;  // the last write
    bool in_flight = false;
  };

  // What is wrong with an access to a cell, and who is on the other side; no kind: nothing.
  struct Problem {
    char const* kind = nullptr;
    Access other;
  };

  bool check_range(int64_t offset, int bytes, Accessor const& who, char const* what);
  static bool ordered(Event const& before, Accessor const& now);
  static Access writer(Cell const& cell);
  static Problem check_read(Cell const& cell, Accessor const& who);
  static Problem check_write(Cell const& cell, Accessor const& who);
  static void note_read(Cell& cell, Accessor const& who);
  void note_writes(int64_t offset, int bytes, Accessor const& who, bool async);
  void report(Problem const& problem, int64_t offset, int bytes, Accessor const& who,
              char const* what);

  Findings& findings_;
  int bytes_;
  Window window_;
  std::unique_ptr<std::byte[]> data_;
  std::vector<Cell> cells_;
};

}  // namespace pyflash::emulator
