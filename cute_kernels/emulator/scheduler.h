// The threads of one CTA, or of the CTAs of one cluster, as fibers, and the order in which they run.
//
// A warp runs in rounds: each of its lanes in turn until it stops at something that the whole warp or CTA has to reach, or
// at something that it waits for alone. When all 32 stand at the same thing, what it does is done for all at once, and the
// next round, of this warp or of another, begins. Work that no thread does, such as the copies of TMA, is done when no warp
// can run, or at any time where the order is random.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cute_kernels/emulator/clock.h"
#include "cute_kernels/emulator/fiber.h"
#include "cute_kernels/emulator/findings.h"
#include "cute_kernels/emulator/machine.h"
#include "cute_kernels/emulator/tensor_map.h"
#include "cute_kernels/emulator/traffic.h"
#include "cute_kernels/emulator/warpgroup_mma.h"

namespace pyflash::emulator {

// A race hides under some orders: warps and lanes ascending, descending, or shuffled anew for each round.
enum class Order { kAscending, kDescending, kRandom };

enum class Stop {
  kNone,
  kEnd,
  kSyncThreads,
  kSyncWarp,
  kShuffle,
  kLdmatrix,
  kMma,
  kElect,
  kAny,
  kNamedBarrier,
  kRegisters,
  kWarpgroupMma,
  kMmaFence,
  kMmaCommit,
  kMmaWait,
  kStmatrix,
  kCluster,
  kMbarrier  // of each lane alone
};

// A cp.async that has not landed.
struct AsyncCopy {
  std::byte const* source;
  int64_t offset;  // in shared memory
  int bytes;
  int site;
};

// A box between global and shared memory.
struct TmaBox {
  MapDescription map;
  std::array<int, kMaxMapRank> coords;
  int rank;  // of the CTA in the cluster
  uint32_t smem_address;
  int bytes;
  bool inside;  // shared memory
  Access access;
  bool adds = false;  // a store: floats, to what is there
};

struct Mbarrier;

struct Thread {
  Fiber fiber;
  int index;  // in the cluster: those of its first CTA come first
  int site;
  Stop stop;
  bool waited_for_previous_kernel;
  // What the stop is about, by its kind.
  union {
    MmaRegisters* mma;
    WarpgroupMma const* warpgroup_mma;
    struct {
      void const* row;
      uint32_t* registers;
      int n_matrices;
      bool transposed;
    } ldmatrix;
    struct {
      uint32_t const* words;
      void* row;
    } stmatrix;
    struct {
      float value;
      int lane_mask;
    } shuffle;
    struct {
      int id;
      int n_threads;
      bool waits;
    } barrier;
    struct {
      int n;
      bool claim;
    } registers;
    struct {
      Mbarrier* barrier;
      uint32_t parity;
    } mbarrier;
    int n_pending;  // of kMmaWait
    bool vote;      // of kAny and, the result, kElect
  };
  std::vector<AsyncCopy> copies;  // oldest first
  std::vector<size_t>
      group_copies;  // of each committed group, oldest first; what is left is not committed
  std::vector<TmaBox> stores;        // that have not read shared memory, oldest first
  std::vector<size_t> group_stores;  // of each committed group
  Access unwritten;                  // a bulk reduction that may not be complete, if any
  RegisterWatch watch;
};

struct Warp {
  std::array<Thread*, kLanes> lanes;
  std::array<uint8_t, kLanes> order;
  int position;  // in `order`, of the lane that runs
  Stop stop;     // kNone while it can run
  uint32_t n_syncs;
  uint32_t epoch;  // that it is in, from 1
  Clock known;
  int registers;  // of a thread
  WarpMmas mmas;
  uint32_t n_stores;                           // of TMA
  std::array<int64_t, kLanes> exponentials{};  // since the lanes last met
  bool has_exponentials = false;               // whether there were any
  WarpTraffic traffic;

  int index() const { return lanes[0]->index / kLanes; }
};

class Scheduler {
 public:
  Scheduler(Order order, uint64_t seed, int n_unlabelled_site)
      : order_(order), random_(seed), no_site_(n_unlabelled_site) {}
  virtual ~Scheduler() = default;

  // Runs `entry`, which must end with stop(Stop::kEnd), as every thread of a cluster. False: it was aborted.
  // watch_registers: its accesses to its stack are known, see RegisterWatch.
  bool run_threads(int n_threads, bool watch_registers, void (*entry)());

  // Stops the thread that runs: lets the others run until all of its warp, or of the CTA, have come as far.
  void stop(Stop where);
  // Ends the cluster. Does not return.
  [[noreturn]] void abort();
  // The same, from where no thread runs.
  void give_up() { aborted_ = true; }

  Thread& current() { return *current_; }
  Warp& current_warp() { return warps_[current_->index / kLanes]; }
  std::vector<Warp>& warps() { return warps_; }
  std::vector<Thread>& threads() { return threads_; }
  bool is_stack_guard(void const* address) const { return stacks_ && stacks_->is_guard(address); }
  // A warp that waited for others goes on.
  static void resume(Warp& warp);
  Order order() const { return order_; }
  uint64_t random();

 protected:
  // Does for a warp, all of whose lanes have stopped at the same, what they stopped for. False: it has to wait for others,
  // and resume() lets it go on.
  virtual bool meet(Warp& warp) = 0;
  virtual void diverged(Thread const& a, Thread const& b, std::string const& detail) = 0;
  // Whether the lane need not wait at its mbarrier; the last time it is asked, it goes on.
  virtual bool passes(Thread& thread) = 0;
  // Units of work that no thread does; do_work() does one of them, whichever the order says.
  virtual size_t n_work() const = 0;
  virtual void do_work() = 0;
  // No warp can go on, and some have not ended.
  virtual void deadlocked() = 0;
  // The thread is about to run.
  virtual void switched_to(Thread& thread) = 0;

 private:
  void reset(int n_threads, bool watch_registers, void (*entry)());
  void start_watch(Thread& thread);
  Thread* advance();
  Thread* next_lane(Warp& warp);
  bool settle(Warp& warp);
  static Thread const* find_other_stop(Warp const& warp);
  void report_divergence(Warp const& warp);
  bool can_run(Warp& warp);
  Warp* next_warp();
  void begin_round(Warp& warp);

  Order const order_;
  uint64_t random_;
  int const no_site_;
  std::unique_ptr<Stacks> stacks_;
  std::unique_ptr<Zeros> written_;  // of the threads' watches
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  Thread* current_ = nullptr;
  Fiber main_;
  bool aborted_ = false;
};

char const* name(Stop stop);

}  // namespace pyflash::emulator
