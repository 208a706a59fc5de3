// The shared memory of one CTA and who touched it last: finds races, reads of bytes in flight or never written, accesses
// by the async proxy without a fence, and accesses past the end.
//
// Barriers of the CTA, named barriers and mbarriers order warps, and sync_warp() the threads of one. Two accesses by
// different threads, one of them a write, are a race unless one of these stands between them: clock.h. A cp.async
// writes at some time from its issue until its thread has waited for it, TMA until the phase of its mbarrier is
// complete, and a warpgroup MMA reads until it has been waited for; any access by others in between is a fault,
// whatever it reads. Threads that store the same bytes to one place do not race: whoever knows of one of these stores
// sees its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cute_kernels/emulator/clock.h"
#include "cute_kernels/emulator/findings.h"
#include "cute_kernels/emulator/window.h"

namespace pyflash::emulator {

// Stands for a byte that has no value: NaN in every 16-bit and 32-bit type.
inline constexpr std::byte kPoison{0xff};
// Eight of them.
inline constexpr uint64_t kPoisonedWord = ~uint64_t{0};

// The name, in findings, of memory that is read from another CTA.
inline constexpr char const* kSharedOfAnother = "shared of another CTA";

// Who accesses, and when.
struct Accessor {
  int thread;  // in the cluster
  int site;
  uint32_t epoch;         // of the thread's warp
  uint32_t n_warp_syncs;  // that the thread's warp has passed
  Clock const* known;     // to the thread's warp
};

constexpr int warp_of(int thread) { return thread / 32; }

// Whether a barrier that both take part in, or a chain of them, stands between what a thread did and now. epoch, n_warp_syncs: of its
// warp, then.
inline bool is_ordered(int thread, uint32_t epoch, uint32_t n_warp_syncs, Accessor const& now) {
  if (thread == now.thread) {
    return true;
  }
  int const warp = warp_of(thread);
  return warp == warp_of(now.thread) ? n_warp_syncs != now.n_warp_syncs
                                     : epoch <= now.known->warps[warp];
}

class SharedMemory {
 public:
  // cell_bytes: what accesses are told apart by; none is smaller. A power of two.
  // first_thread: of the CTA, in its cluster.
  SharedMemory(int bytes, int cell_bytes, int first_thread, int n_threads, Findings& findings);

  // As a new CTA finds it: bytes without a value, which hold `unwritten` over and over.
  void reset(uint64_t unwritten);

  void* address() const { return window_.start(); }
  bool contains(void const* address) const { return window_.contains(address); }
  int64_t offset(void const* address) const { return window_.offset(address); }
  int size() const { return bytes_; }

  // Each returns where the bytes are, or nullptr, with a finding, where they are not all inside.
  std::byte const* read(int64_t offset, int bytes, Accessor const& who);
  // value: that the caller is about to put there.
  std::byte* write(int64_t offset, int bytes, void const* value, Accessor const& who);
  bool begin_async_write(int64_t offset, int bytes, Accessor const& who);
  std::byte* end_async_write(int64_t offset, int bytes, Accessor const& who);

  // TMA, all of whose bytes are inside. They are complete with this phase of the mbarrier.
  void begin_tma_write(int64_t offset, int bytes, int mbarrier, uint32_t phase,
                       Accessor const& who);
  std::byte* end_tma_write(int64_t offset, int bytes);

  // 16 bytes that the warp's MMA, or TMA store, of this number reads; they are inside. may_be_unwritten: nothing is made
  // of them.
  enum class Reader { kMma, kTmaStore };
  void begin_async_read(int64_t offset, Reader reader, uint32_t number, bool may_be_unwritten,
                        Accessor const& who);
  bool is_written(int64_t offset) const {
    return cells_[first_cell(offset)].write.thread != kNobody;
  }
  std::byte const* data(int64_t offset) const { return data_.get() + offset; }

  // The thread's stores so far become visible to the async proxy.
  void fence(Accessor const& who) { fences_of(who.thread).push_back(who.epoch); }

 private:
  static constexpr int16_t kNobody = -1;
  enum class By : uint8_t { kThread, kCpAsync, kTma };

  struct Event {
    uint32_t epoch = 0;
    uint32_t n_warp_syncs = 0;
    int16_t thread = kNobody;
    int8_t site = -1;
  };

  // Other threads whose stores of the same bytes neither know of each other nor of the last.
  struct EqualWriter {
    Event event;
    uint32_t n_fences;
  };

  struct Cell {
    Event write;
    Event read;           // the first that others need not know of
    Event other_read;     // one more, of another warp if there is one
    uint32_t detail = 0;  // of the last write: by TMA the phase, else the thread's fences before it
    int16_t mbarrier = -1;
    By by = By::kThread;
    bool in_flight = false;
    bool has_equal = false;
  };

  static constexpr int kReaders = 2;
  static constexpr int kAsyncReadBytes = 16;  // and what these are aligned to
  // The last MMA, or store, of a warp that reads these bytes.
  struct AsyncRead {
    uint32_t number = 0;
    int8_t site = -1;
  };

  struct AsyncReads {
    uint32_t latest = 0;          // number of any bytes
    std::vector<AsyncRead> last;  // by bytes that are read at once; empty before the first
  };

  // The fault of an access to a cell, and the other access; no kind: no fault.
  struct Problem {
    char const* kind = nullptr;
    Access other;
  };

  size_t first_cell(int64_t offset) const { return static_cast<size_t>(offset) / cell_bytes_; }
  size_t end_cell(int64_t offset, int bytes) const {
    return static_cast<size_t>(offset + bytes) / cell_bytes_;
  }
  // Of a cell, the bytes that an asynchronous read reads at once.
  size_t async_bytes_of(size_t cell) const { return cell * cell_bytes_ / kAsyncReadBytes; }
  bool check_range(int64_t offset, int bytes, Accessor const& who, char const* what);
  static Event event(Accessor const& who);
  static bool ordered(Event const& before, Accessor const& now);
  static bool complete(Cell const& cell, Accessor const& who);
  static bool is_known(Cell const& cell, Accessor const& who);
  static Access writer(Cell const& cell);
  bool fenced(Event const& write, uint32_t n_fences, Accessor const& who) const;
  bool knows_equal(size_t i, Accessor const& who, bool async) const;
  Problem check_read(size_t i, Accessor const& who) const;
  Problem check_async_read(size_t i, Accessor const& who) const;
  Problem check_write(size_t i, Accessor const& who, bool changes) const;
  bool knows_async_reads(Accessor const& who) const;
  Problem check_async_reads(size_t i, Accessor const& who) const;
  AsyncReads& async_reads_of(int warp, Reader reader) {
    return async_reads_[(warp - first_warp_) * kReaders + static_cast<int>(reader)];
  }
  // The epochs of the fences of a thread of the CTA.
  std::vector<uint32_t>& fences_of(int thread) { return fences_[thread - first_thread_]; }
  std::vector<uint32_t> const& fences_of(int thread) const {
    return fences_[thread - first_thread_];
  }
  static void note_read(Cell& cell, Accessor const& who);
  void note_writes(int64_t offset, int bytes, Accessor const& who, By by, bool changes = true);
  void note_write(size_t i, Accessor const& who, By by, bool changes);
  void report(Problem const& problem, int64_t offset, int bytes, Accessor const& who,
              char const* what) {
    if (problem.kind != nullptr) {
      add_finding(problem, offset, bytes, who, what);
    }
  }
  void add_finding(Problem const& problem, int64_t offset, int bytes, Accessor const& who,
                   char const* what);

  Findings& findings_;
  int bytes_;
  int cell_bytes_;
  int first_thread_;
  int first_warp_;
  int n_warps_;
  Window window_;
  std::unique_ptr<std::byte[]> data_;
  std::vector<Cell> cells_;
  std::unordered_map<size_t, std::vector<EqualWriter>> equal_;  // by cell
  std::vector<AsyncReads> async_reads_;                         // by warp and reader
  std::vector<std::vector<uint32_t>> fences_;                   // by thread
};

}  // namespace pyflash::emulator
