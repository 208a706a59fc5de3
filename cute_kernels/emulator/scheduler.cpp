#include "cute_kernels/emulator/scheduler.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace pyflash::emulator {

namespace {

char const* name(Stop stop) {
  switch (stop) {
    case Stop::kNone:
      return "running";
    case Stop::kEnd:
      return "the end";
    case Stop::kSyncThreads:
      return "sync_threads";
    case Stop::kSyncWarp:
      return "sync_warp";
    case Stop::kShuffle:
      return "shfl_xor";
    case Stop::kLdmatrix:
      return "ldmatrix";
    case Stop::kMma:
      return "mma";
  }
  return "";
}

// Whether both take part in one instruction.
bool together(Thread const& a, Thread const& b) {
  if (a.stop != b.stop) {
    return false;
  }
  if (a.stop == Stop::kShuffle) {
    return a.shuffle.lane_mask == b.shuffle.lane_mask;
  }
  return a.stop != Stop::kLdmatrix ||
         (a.site == b.site && a.ldmatrix.n_matrices == b.ldmatrix.n_matrices &&
          a.ldmatrix.transposed == b.ldmatrix.transposed);
}

}  // namespace

bool Scheduler::run_threads(int n_threads, void (*entry)()) {
  reset(n_threads, entry);
  Warp& first = *next_warp();
  begin_round(first);
  current_ = first.lanes[first.order[0]];
  Fiber::switch_to(main_, current_->fiber);
  current_ = nullptr;
  return !aborted_;
}

void Scheduler::reset(int n_threads, void (*entry)()) {
  if (static_cast<int>(threads_.size()) != n_threads) {
    threads_ = std::vector<Thread>(n_threads);
    warps_ = std::vector<Warp>(n_threads / kLanes);
    stacks_ = std::make_unique<Stacks>(n_threads);
  }
  for (int i = 0; i < n_threads; ++i) {
    Thread& thread = threads_[i];
    thread.fiber.start(stacks_->bottom(i), stacks_->top(i), entry);
    thread.index = i;
    thread.site = no_site_;
    thread.stop = Stop::kNone;
    thread.copies.clear();
    thread.group_copies.clear();
    warps_[i / kLanes].lanes[i % kLanes] = &thread;
  }
  for (Warp& warp : warps_) {
    std::iota(warp.order.begin(), warp.order.end(), uint8_t{0});
    if (order_ == Order::kDescending) {
      std::reverse(warp.order.begin(), warp.order.end());
    }
    warp.stop = Stop::kNone;
    warp.n_syncs = 0;
  }
  n_barriers_ = 0;
  aborted_ = false;
}

void Scheduler::stop(Stop where) {
  Thread& from = *current_;
  from.stop = where;
  Thread* const to = advance();
  if (to == nullptr) {
    Fiber::switch_to(from.fiber, main_);
  } else if (to != &from) {
    current_ = to;
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
  if (++warp->position == kLanes) {
    if (!same_stop(*warp)) {
      return nullptr;
    }
    meet(*warp);
    Stop const stop = warp->lanes[0]->stop;
    bool const waits = stop == Stop::kSyncThreads || stop == Stop::kEnd;
    warp->stop = waits ? stop : Stop::kNone;
    if (waits || order_ == Order::kRandom) {
      warp = next_warp();
    }
    if (warp == nullptr) {
      return nullptr;
    }
    begin_round(*warp);
  }
  return warp->lanes[warp->order[warp->position]];
}

bool Scheduler::same_stop(Warp& warp) {
  Thread const& first = *warp.lanes[0];
  auto const other = std::find_if(warp.lanes.begin(), warp.lanes.end(),
                                  [&](Thread const* lane) { return !together(first, *lane); });
  if (other == warp.lanes.end()) {
    return true;
  }
  std::string const stops = std::string("a lane stops at ") + name(first.stop);
  diverged(first, **other,
           first.stop == (*other)->stop
               ? stops + ", another with different operands"
               : stops + ", another of its warp at " + name((*other)->stop));
  aborted_ = true;
  return false;
}

// nullptr: none can run any more.
Warp* Scheduler::next_warp() {
  std::vector<Warp*> ready;
  for (Warp& warp : warps_) {
    if (warp.stop == Stop::kNone) {
      ready.push_back(&warp);
    }
  }
  if (ready.empty()) {
    return after_barrier();
  }
  switch (order_) {
    case Order::kAscending:
      return ready.front();
    case Order::kDescending:
      return ready.back();
    case Order::kRandom:
      break;
  }
  return ready[random() % ready.size()];
}

Warp* Scheduler::after_barrier() {
  auto const stops_at = [](Stop stop) { return [=](Warp const& w) { return w.stop == stop; }; };
  if (std::all_of(warps_.begin(), warps_.end(), stops_at(Stop::kEnd))) {
    return nullptr;
  }
  auto const ended = std::find_if(warps_.begin(), warps_.end(), stops_at(Stop::kEnd));
  if (ended != warps_.end()) {
    auto const waits = std::find_if(warps_.begin(), warps_.end(), stops_at(Stop::kSyncThreads));
    diverged(*waits->lanes[0], *ended->lanes[0],
             "a warp waits at sync_threads, after " + std::to_string(n_barriers_) +
                 " of them, and another has ended");
    aborted_ = true;
    return nullptr;
  }
  ++n_barriers_;
  for (Warp& warp : warps_) {
    warp.stop = Stop::kNone;
  }
  return next_warp();
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
