#include "cute_kernels/emulator/scheduler.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace pyflash::emulator {

namespace {

constexpr char const* kStopNames[] = {
    "running",    "the end",      "sync_threads", "sync_warp",          "shfl_xor",
    "ldmatrix",   "mma",          "elect_one",    "any_lane",           "a named barrier",
    "setmaxnreg", "wgmma",        "wgmma.fence",  "wgmma.commit_group", "wgmma.wait_group",
    "stmatrix",   "cluster_sync", "an mbarrier"};
static_assert(std::size(kStopNames) == static_cast<int>(Stop::kMbarrier) + 1);

// Whether both take part in one instruction.
bool together(Thread const& a, Thread const& b) {
  if (a.stop != b.stop) {
    return false;
  }
  switch (a.stop) {
    case Stop::kShuffle:
      return a.shuffle.lane_mask == b.shuffle.lane_mask;
    case Stop::kLdmatrix:
      return a.site == b.site && a.ldmatrix.n_matrices == b.ldmatrix.n_matrices &&
             a.ldmatrix.transposed == b.ldmatrix.transposed;
    case Stop::kNamedBarrier:
      return a.barrier.id == b.barrier.id && a.barrier.n_threads == b.barrier.n_threads &&
             a.barrier.waits == b.barrier.waits;
    case Stop::kStmatrix:
      return a.site == b.site;
    case Stop::kRegisters:
      return a.registers.n == b.registers.n && a.registers.claim == b.registers.claim;
    case Stop::kWarpgroupMma:
      return same_instruction(*a.warpgroup_mma, *b.warpgroup_mma);
    case Stop::kMmaWait:
      return a.n_pending == b.n_pending;
    default:
      return true;
  }
}

}  // namespace

char const* name(Stop stop) { return kStopNames[static_cast<int>(stop)]; }

bool Scheduler::run_threads(int n_threads, bool watch_registers, void (*entry)()) {
  reset(n_threads, watch_registers, entry);
  Warp& first = *next_warp();
  begin_round(first);
  current_ = next_lane(first);
  switched_to(*current_);
  Fiber::switch_to(main_, current_->fiber);
  current_ = nullptr;
  return !aborted_;
}

void Scheduler::reset(int n_threads, bool watch_registers, void (*entry)()) {
  if (static_cast<int>(threads_.size()) != n_threads) {
    threads_ = std::vector<Thread>(n_threads);
    warps_ = std::vector<Warp>(n_threads / kLanes);
    stacks_ = std::make_unique<Stacks>(n_threads);
    written_.reset();
  }
  for (int i = 0; i < n_threads; ++i) {
    Thread& thread = threads_[i];
    thread.fiber.start(stacks_->bottom(i), stacks_->top(i), entry);
    thread.index = i;
    thread.site = no_site_;
    thread.waited_for_previous_kernel = false;
    thread.stop = Stop::kNone;
    thread.copies.clear();
    thread.group_copies.clear();
    thread.stores.clear();
    thread.group_stores.clear();
    if (watch_registers) {
      start_watch(thread);
    }
    warps_[i / kLanes].lanes[i % kLanes] = &thread;
  }
  for (Warp& warp : warps_) {
    std::iota(warp.order.begin(), warp.order.end(), uint8_t{0});
    if (order_ == Order::kDescending) {
      std::reverse(warp.order.begin(), warp.order.end());
    }
    warp.stop = Stop::kNone;
    warp.n_syncs = 0;
    warp.epoch = 1;
    warp.known = {};
    warp.registers = 0;
    warp.mmas = {};
    warp.n_stores = 0;
  }
  aborted_ = false;
}

// NOTE: fences are counted on from CTA to CTA, so that what is known of the stack need not be forgotten.
void Scheduler::start_watch(Thread& thread) {
  RegisterWatch& watch = thread.watch;
  if (watch.written == nullptr) {
    watch.stack = stacks_->bottom(thread.index);
    watch.stack_bytes = stacks_->top(thread.index) - watch.stack;
    size_t const n_words = (stacks_->top(0) - stacks_->bottom(0)) / sizeof(uint32_t) + 1;
    if (written_ == nullptr) {
      written_ = std::make_unique<Zeros>(threads_.size() * n_words * sizeof(uint32_t));
    }
    watch.written = reinterpret_cast<uint32_t*>(written_->data()) + thread.index * n_words;
  }
  watch.n_ranges = 0;
  ++watch.n_fences;
}

void Scheduler::stop(Stop where) {
  Thread& from = *current_;
  from.stop = where;
  Thread* const to = advance();
  if (to == nullptr) {
    Fiber::switch_to(from.fiber, main_);
  } else if (to != &from) {
    current_ = to;
    switched_to(*to);
    Fiber::switch_to(from.fiber, to->fiber);
  }
}

void Scheduler::abort() {
  aborted_ = true;
  Fiber::switch_to(current_->fiber, main_);
  __builtin_unreachable();
}

// The thread to run next; nullptr: the CTA has ended, or cannot go on.
Thread* Scheduler::advance() {
  Warp* warp = &current_warp();
  ++warp->position;
  if (Thread* const lane = next_lane(*warp)) {
    return lane;
  }
  if (!settle(*warp) || aborted_) {
    return nullptr;
  }
  if (warp->stop != Stop::kNone || order_ == Order::kRandom) {
    warp = next_warp();
  }
  if (warp == nullptr || aborted_) {
    return nullptr;
  }
  begin_round(*warp);
  return next_lane(*warp);
}

// The next lane of this round that can run; nullptr: the round has ended.
Thread* Scheduler::next_lane(Warp& warp) {
  for (; warp.position < kLanes; ++warp.position) {
    Thread* const lane = warp.lanes[warp.order[warp.position]];
    if (lane->stop == Stop::kNone) {
      return lane;
    }
  }
  return nullptr;
}

// After a round. False: the CTA cannot go on.
bool Scheduler::settle(Warp& warp) {
  if (warp.lanes[0]->stop == Stop::kMbarrier || find_other_stop(warp) != nullptr) {
    bool const waits = std::any_of(warp.lanes.begin(), warp.lanes.end(), [](Thread const* lane) {
      return lane->stop == Stop::kMbarrier;
    });
    if (!waits) {
      report_divergence(warp);
      return false;
    }
    warp.stop = Stop::kMbarrier;
    return true;
  }
  if (warp.lanes[0]->stop == Stop::kEnd) {
    warp.stop = Stop::kEnd;
    meet(warp);
    return true;
  }
  warp.stop = warp.lanes[0]->stop;
  if (meet(warp)) {
    resume(warp);
  }
  return true;
}

void Scheduler::resume(Warp& warp) {
  warp.stop = Stop::kNone;
  for (Thread* lane : warp.lanes) {
    lane->stop = Stop::kNone;
  }
}

// The first lane that does not stop at the same as lane 0; nullptr: there is none.
Thread const* Scheduler::find_other_stop(Warp const& warp) {
  Thread const& first = *warp.lanes[0];
  auto const other = std::find_if(warp.lanes.begin() + 1, warp.lanes.end(),
                                  [&](Thread const* lane) { return !together(first, *lane); });
  return other == warp.lanes.end() ? nullptr : *other;
}

void Scheduler::report_divergence(Warp const& warp) {
  Thread const& first = *warp.lanes[0];
  Thread const& other = *find_other_stop(warp);
  std::string const stops = std::string("a lane stops at ") + name(first.stop);
  diverged(first, other,
           first.stop == other.stop ? stops + ", another with different operands"
                                    : stops + ", another of its warp at " + name(other.stop));
  aborted_ = true;
}

// Lanes that need not wait any longer can run.
bool Scheduler::can_run(Warp& warp) {
  if (warp.stop == Stop::kMbarrier) {
    for (Thread* lane : warp.lanes) {
      if (lane->stop == Stop::kMbarrier && passes(*lane)) {
        lane->stop = Stop::kNone;
        warp.stop = Stop::kNone;
      }
    }
  }
  return warp.stop == Stop::kNone;
}

// nullptr: none can run any more.
Warp* Scheduler::next_warp() {
  while (true) {
    std::vector<Warp*> ready;
    for (Warp& warp : warps_) {
      if (can_run(warp)) {
        ready.push_back(&warp);
      }
    }
    size_t const n_work = this->n_work();
    size_t const n_choices = ready.size() + (order_ == Order::kRandom ? n_work : 0);
    if (ready.empty() && n_work == 0) {
      bool const ended = std::all_of(warps_.begin(), warps_.end(),
                                     [](Warp const& warp) { return warp.stop == Stop::kEnd; });
      if (!ended) {
        deadlocked();
        aborted_ = true;
      }
      return nullptr;
    }
    size_t const choice = order_ == Order::kRandom ? random() % n_choices : 0;
    if (choice < ready.size()) {
      return order_ == Order::kDescending ? ready.back() : ready[choice];
    }
    do_work();
  }
}

void Scheduler::begin_round(Warp& warp) {
  warp.position = 0;
  if (order_ == Order::kRandom) {
    for (int i = kLanes - 1; i > 0; --i) {
      std::swap(warp.order[i], warp.order[random() % (i + 1)]);
    }
  }
}

// splitmix64 (Steele, Lea, Flood 2014).
uint64_t Scheduler::random() {
  uint64_t z = random_ += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

}  // namespace pyflash::emulator
