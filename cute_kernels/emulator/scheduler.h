// The threads of one CTA as fibers, and the order in which they run.
//
// A warp runs in rounds: each of its lanes in turn until it stops at something that the whole warp or CTA has to reach.
// After the round all 32 must stand at the same thing; what it does is done for all at once, and the next round, of this
// warp or of another, begins.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cute_kernels/emulator/fiber.h"
#include "cute_kernels/emulator/findings.h"
#include "cute_kernels/emulator/machine.h"
#include "cute_kernels/emulator/traffic.h"

namespace pyflash::emulator {

// A race hides under some orders: warps and lanes ascending, descending, or shuffled anew for each round.
enum class Order { kAscending, kDescending, kRandom };

enum class Stop { kNone, kEnd, kSyncThreads, kSyncWarp, kShuffle, kLdmatrix, kMma };

// A cp.async that has not landed.
struct AsyncCopy {
  std::byte const* source;
  int64_t offset;  // in shared memory
  int bytes;
  int site;
};

struct Thread {
  Fiber fiber;
  int index;
  int site;
  Stop stop;
  // What the stop is about, by its kind.
  union {
    MmaRegisters* mma;
    struct {
      void const* row;
      uint32_t* registers;
      int n_matrices;
      bool transposed;
    } ldmatrix;
    struct {
      float value;
      int lane_mask;
    } shuffle;
  };
  std::vector<AsyncCopy> copies;  // oldest first
  std::vector<size_t>
      group_copies;  // of each committed group, oldest first; what is left is not committed
};

struct Warp {
  std::array<Thread*, kLanes> lanes;
  std::array<uint8_t, kLanes> order;
  int position;  // in `order`, of the lane that runs
  Stop stop;     // kNone while it can run
  uint32_t n_syncs;
  WarpTraffic traffic;
};

class Scheduler {
 public:
  Scheduler(Order order, uint64_t seed, int n_unlabelled_site)
      : order_(order), random_(seed), no_site_(n_unlabelled_site) {}
  virtual ~Scheduler() = default;

  // Runs `entry`, which must end with stop(Stop::kEnd), as every thread of a CTA. False: it was aborted.
  bool run_threads(int n_threads, void (*entry)());

  // Of the thread that runs: lets the others run until all of its warp, or of the CTA, have come as far.
  void stop(Stop where);
  // Ends the CTA. Does not return.
  [[noreturn]] void abort();

  Thread& current() { return *current_; }
  Warp& current_warp() { return warps_[current_->index / kLanes]; }
  uint32_t n_barriers() const { return n_barriers_; }
  std::vector<Warp>& warps() { return warps_; }
  std::vector<Thread>& threads() { return threads_; }
  bool is_stack_guard(void const* address) const { return stacks_ && stacks_->is_guard(address); }

 protected:
  // Does for a warp, all of whose lanes have stopped at the same, what they stopped for.
  virtual void meet(Warp& warp) = 0;
  virtual void diverged(Thread const& a, Thread const& b, std::string const& detail) = 0;

 private:
  void reset(int n_threads, void (*entry)());
  Thread* advance();
  bool same_stop(Warp& warp);
  Warp* next_warp();
  Warp* after_barrier();
  void begin_round(Warp& warp);
  uint64_t random();

  Order const order_;
  uint64_t random_;
  int const no_site_;
  std::unique_ptr<Stacks> stacks_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  Thread* current_ = nullptr;
  Fiber main_;
  uint32_t n_barriers_ = 0;
  bool aborted_ = false;
};

}  // namespace pyflash::emulator
