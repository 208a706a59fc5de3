// Barriers of the CTA, mbarriers, registers that move between warps, and what is wrong where nothing goes on.
#include <algorithm>
#include <map>

#include "cute_kernels/emulator/emulator.h"

namespace pyflash::emulator {

namespace {

constexpr int kMinRegisters = 24;
constexpr int kMaxRegisters = 256;
constexpr int kRegisterUnit = 8;

std::string count(int64_t n, char const* what) { return std::to_string(n) + " " + what; }

}  // namespace

// The calls of the thread that runs

bool Emulator::elect_one() {
  stop(Stop::kElect);
  return current().vote;
}

bool Emulator::any_lane(bool value) {
  current().vote = value;
  stop(Stop::kAny);
  return current().vote;
}

void Emulator::named_barrier(int id, int n_threads, bool waits) {
  if (id < 0 || id >= static_cast<int>(named_.size()) || n_threads % kLanes != 0 ||
      n_threads <= 0) {
    fail("a named barrier is one of 16, for a multiple of 32 threads");
  }
  current().barrier = {id, n_threads, waits};
  stop(Stop::kNamedBarrier);
}

void Emulator::set_registers(int n_registers, bool claim) {
  current().registers = {n_registers, claim};
  stop(Stop::kRegisters);
}

void Emulator::mbarrier_init(void* address, int n_arrivals) {
  Thread const& thread = current();
  Access const access{thread.site, thread.index, "mbarrier.init"};
  int64_t const offset = shared_.offset(address);
  if (!shared_.contains(address) || offset < 0 || offset + 8 > shared_.size() || offset % 8 != 0) {
    fail("an mbarrier is 8 bytes of shared memory, aligned to them");
  }
  Mbarrier* const barrier = mbarriers_.init(offset, n_arrivals);
  if (barrier == nullptr) {
    fail("more mbarriers than the emulator has room for, 64");
  }
  barrier->init_warp = thread.index / kLanes;
  barrier->init_epoch = current_warp().epoch;
}

void Emulator::fence_mbarrier_init() {
  Warp const& warp = current_warp();
  for (Mbarrier& barrier : mbarriers_.all()) {
    if (barrier.init_warp == warp.index() && !barrier.init_fenced) {
      barrier.init_fenced = true;
      barrier.fence_epoch = warp.epoch;
    }
  }
}

void Emulator::mbarrier_arrive(void* address, int bytes) {
  Thread const& thread = current();
  Warp& warp = current_warp();
  Mbarrier& barrier = mbarrier_at(address, "arrives");
  ++(bytes > 0 ? counts_.mbarrier_expects : counts_.mbarrier_arrivals);
  Access const access{thread.site, thread.index, bytes > 0 ? "expect_tx" : "arrive"};
  check_visible(barrier, warp, access, false);
  check_ring(barrier, warp, access);
  ++barrier.arrived[warp.index()];
  if (bytes > 0) {
    barrier.expected += bytes;
    barrier.tx += bytes;
    barrier.expect = access;
  }
  if (barrier.n_pending == 0) {
    findings_.add({.kind = "too_many_arrivals",
                   .memory = barrier.name,
                   .offset = barrier.offset,
                   .bytes = 8,
                   .access = access,
                   .detail = "phase " + std::to_string(barrier.phase) + " takes " +
                             std::to_string(barrier.n_arrivals)});
  } else {
    --barrier.n_pending;
  }
  barrier.gathering.join(release(warp));
  log(thread, TimelineEvent::kArrive, barrier.index, barrier.phase);
  finish_phase(barrier);
}

void Emulator::mbarrier_wait(void* address, uint32_t parity) {
  Thread& thread = current();
  ++counts_.mbarrier_waits;
  Mbarrier& barrier = mbarrier_at(address, "waits");
  Access const access{thread.site, thread.index, "wait"};
  check_visible(barrier, current_warp(), access, false);
  check_parity(barrier, parity, current_warp(), access);
  thread.mbarrier = {&barrier, parity};
  if (!passes(thread)) {
    stop(Stop::kMbarrier);
  }
}

// NOTE: on behalf of a lane of any warp.
bool Emulator::passes(Thread& thread) {
  Mbarrier& barrier = *thread.mbarrier.barrier;
  if (!barrier.passed(thread.mbarrier.parity)) {
    return false;
  }
  Warp& warp = warps()[thread.index / kLanes];
  int const w = warp.index();
  if (barrier.phase == 0) {
    return true;  // the phase before the first: it counts as complete
  }
  barrier.awaited = true;
  log(thread, TimelineEvent::kWait, barrier.index, barrier.phase - 1);
  barrier.waited[w] = std::max(barrier.waited[w], barrier.phase);
  warp.known.join(barrier.complete);
  uint32_t& known = warp.known.phases[barrier.index];
  known = std::max(known, barrier.phase);
  return true;
}

// What they are for

Mbarrier& Emulator::mbarrier_at(void* address, char const* what) {
  Thread const& thread = current();
  int64_t const offset = shared_.offset(address);
  Mbarrier* const barrier = shared_.contains(address) ? mbarriers_.find(offset) : nullptr;
  if (barrier == nullptr) {
    findings_.add({.kind = "barrier_not_initialised",
                   .memory = mbarriers_.name_at(offset),
                   .offset = offset,
                   .bytes = 8,
                   .access = {thread.site, thread.index, what}});
    abort();
  }
  return *barrier;
}

// Whether its init happened before; async: for TMA too.
void Emulator::check_visible(Mbarrier const& barrier, Warp const& warp, Access const& access,
                             bool async) {
  uint32_t const known = warp.known.warps[barrier.init_warp];
  bool const own = warp.index() == barrier.init_warp;
  bool const visible = own || known >= barrier.init_epoch;
  bool const visible_to_tma = barrier.init_fenced && (own || known >= barrier.fence_epoch);
  if (!visible || (async && !visible_to_tma)) {
    findings_.add({.kind = "barrier_not_visible",
                   .memory = barrier.name,
                   .offset = barrier.offset,
                   .bytes = 8,
                   .access = access,
                   .detail = visible ? "no fence.mbarrier_init between that and its init"
                                     : "no barrier of the CTA between that and its init"});
  }
}

// A stage is released by those who have waited for what is in it, and filled after those have who were to release it.
void Emulator::check_ring(Mbarrier& barrier, Warp const& warp, Access const& access) {
  int const w = warp.index();
  Mbarrier const* missed = nullptr;
  uint32_t phase = 0;
  if (barrier.full != nullptr && barrier.full->waited[w] <= barrier.arrived[w]) {
    missed = barrier.full;
    phase = barrier.arrived[w];
  } else if (barrier.empty != nullptr && barrier.phase > 0 &&
             barrier.empty->waited[w] < barrier.phase) {
    missed = barrier.empty;
    phase = barrier.phase - 1;
  }
  if (missed != nullptr) {
    findings_.add({.kind = "phase_never_awaited",
                   .memory = missed->name,
                   .offset = missed->offset,
                   .bytes = 8,
                   .access = access,
                   .detail = "its warp did not wait for phase " + std::to_string(phase)});
  }
}

// Who reads a stage waits for the fill that comes after those that it has released; who fills it, for the release of the
// fill before.
void Emulator::check_parity(Mbarrier const& barrier, uint32_t parity, Warp const& warp,
                            Access const& access) {
  int const w = warp.index();
  bool const reads = barrier.empty != nullptr;
  // NOTE: of the lane that is elected; others may run ahead of its arrivals.
  if (access.thread % kLanes != 0 || (!reads && barrier.full == nullptr)) {
    return;
  }
  uint32_t const n = reads ? barrier.empty->arrived[w] : barrier.full->arrived[w] + 1;
  if ((n & 1) != parity) {
    uint32_t const done = reads ? n : n - 1;
    findings_.add({.kind = "wrong_phase",
                   .memory = barrier.name,
                   .offset = barrier.offset,
                   .bytes = 8,
                   .access = access,
                   .detail = "for parity " + std::to_string(parity) + ", and its warp has " +
                             (reads ? "released " : "filled ") + "the stage " +
                             std::to_string(done) + " times"});
  }
}

// After an arrival, or bytes. Completes the phase where nothing is missing.
void Emulator::finish_phase(Mbarrier& barrier) {
  bool const carried = barrier.carried;
  bool const awaited = barrier.awaited;
  if (!barrier.complete_phase()) {
    return;
  }
  std::string const phase = "phase " + std::to_string(barrier.phase - 1);
  if (carried && !awaited) {
    findings_.add({.kind = "phase_never_awaited",
                   .memory = barrier.name,
                   .offset = barrier.offset,
                   .bytes = 8,
                   .access = barrier.expect,
                   .detail = "nobody waited for the phase before " + phase});
  }
  if (barrier.expected != barrier.issued) {
    findings_.add({.kind = "wrong_expect_tx",
                   .memory = barrier.name,
                   .offset = barrier.offset,
                   .bytes = 8,
                   .access = barrier.expect,
                   .detail = phase + " was complete with " + count(barrier.expected, "bytes") +
                             ", and TMA brings " + std::to_string(barrier.issued)});
  }
  barrier.expected = barrier.issued = 0;
}

bool Emulator::meet_barrier(Warp& warp, int id, int n_threads, bool waits) {
  NamedBarrier& barrier = named_[id];
  Thread const& first = *warp.lanes[0];
  ++warp.n_syncs;
  if (barrier.n_arrived == 0) {
    barrier.n_expected = n_threads;
    barrier.first = {first.site, first.index, waits ? "bar.sync" : "bar.arrive"};
  } else if (barrier.n_expected != n_threads) {
    findings_.add({.kind = "divergence",
                   .access = {first.site, first.index, waits ? "bar.sync" : "bar.arrive"},
                   .other = barrier.first,
                   .detail = "named barrier " + std::to_string(id) + " is for " +
                             count(n_threads, "threads") + " here, and for " +
                             std::to_string(barrier.n_expected) + " there"});
    give_up();
    return false;
  }
  log(first, waits ? TimelineEvent::kNamedSync : TimelineEvent::kNamedArrive, id,
      barrier.n_completed);
  barrier.n_arrived += kLanes;
  barrier.clock.join(release(warp));
  if (waits) {
    barrier.waiting.push_back(&warp);
  }
  if (barrier.n_arrived < barrier.n_expected) {
    return !waits;
  }
  for (Warp* waiting : barrier.waiting) {
    waiting->known.join(barrier.clock);
    if (waiting != &warp) {
      resume(*waiting);
    }
  }
  int const n_completed = barrier.n_completed + 1;
  barrier = {};
  barrier.n_completed = n_completed;
  return true;
}

// setmaxnreg
bool Emulator::meet_registers(Warp& warp) {
  auto const [n, claim] = warp.lanes[0]->registers;
  Thread const& first = *warp.lanes[0];
  auto const wrong = [&](std::string const& detail) {
    findings_.add({.kind = "register_budget",
                   .access = {first.site, first.index, "setmaxnreg"},
                   .detail = detail});
  };
  if (warp.registers == 0) {
    warp.registers = kernel_.registers;
  }
  if (n % kRegisterUnit != 0 || n < kMinRegisters || n > kMaxRegisters) {
    wrong(count(n, "registers: expected a multiple of 8 from 24 to 256"));
    return true;
  }
  if (claim ? n < warp.registers : n > warp.registers) {
    wrong(std::string(claim ? "claims " : "releases down to ") + count(n, "registers, and has ") +
          std::to_string(warp.registers));
    return true;
  }
  if (claim) {
    return take_registers(warp, n);
  }
  free_registers_ += (warp.registers - n) * kLanes;
  warp.registers = n;
  for (Warp& other : warps()) {
    if (other.stop == Stop::kRegisters && &other != &warp &&
        take_registers(other, other.lanes[0]->registers.n)) {
      resume(other);
    }
  }
  return true;
}

bool Emulator::take_registers(Warp& warp, int n) {
  int const needed = (n - warp.registers) * kLanes;
  if (needed > free_registers_) {
    return false;
  }
  free_registers_ -= needed;
  warp.registers = n;
  return true;
}

void Emulator::end_barriers() {
  for (size_t id = 0; id < named_.size(); ++id) {
    if (named_[id].n_arrived > 0) {
      findings_.add({.kind = "arrivals_left",
                     .access = named_[id].first,
                     .detail = "named barrier " + std::to_string(id) + " has " +
                               count(named_[id].n_arrived, "of ") +
                               std::to_string(named_[id].n_expected) + " threads"});
    }
  }
  for (Mbarrier const& barrier : mbarriers_.all()) {
    if (barrier.carried && !barrier.awaited) {
      findings_.add(
          {.kind = "phase_never_awaited",
           .memory = barrier.name,
           .offset = barrier.offset,
           .bytes = 8,
           .access = barrier.expect,
           .detail = "nobody waited for its last phase, " + std::to_string(barrier.phase - 1)});
    }
    if (barrier.issued != barrier.expected || barrier.tx != 0) {
      findings_.add(
          {.kind = "wrong_expect_tx",
           .memory = barrier.name,
           .offset = barrier.offset,
           .bytes = 8,
           .access = barrier.expect,
           .detail = "phase " + std::to_string(barrier.phase) + " expects " +
                     count(barrier.expected, "bytes when the CTA ends, and TMA brought ") +
                     std::to_string(barrier.issued)});
    }
  }
}

// Deadlocks

std::string Emulator::role_of(Warp const& warp) const {
  std::string const role = kernel_.role(warp.index());
  std::string const number = "warp " + std::to_string(warp.index());
  return role.empty() ? number : number + " (" + role + ")";
}

std::string Emulator::what_it_waits_for(Warp const& warp) const {
  auto const waiting = std::find_if(warp.lanes.begin(), warp.lanes.end(),
                                    [](Thread const* lane) { return lane->stop != Stop::kEnd; });
  Thread const& lane = **waiting;
  switch (warp.stop) {
    case Stop::kMbarrier: {
      Mbarrier const& barrier = *lane.mbarrier.barrier;
      std::string missing;
      if (barrier.n_pending > 0) {
        missing = count(barrier.n_pending, "of ") + count(barrier.n_arrivals, "arrivals");
      }
      if (barrier.tx != 0) {
        missing += (missing.empty() ? "" : " and ") + count(barrier.tx, "bytes");
      }
      return "phase " + std::to_string(barrier.phase) + " of " + barrier.name + ", which lacks " +
             missing;
    }
    case Stop::kRegisters:
      return count((lane.registers.n - warp.registers) * kLanes, "registers, of which there are ") +
             std::to_string(free_registers_);
    case Stop::kSyncThreads:
    case Stop::kNamedBarrier: {
      int const id = warp.stop == Stop::kSyncThreads ? 0 : lane.barrier.id;
      NamedBarrier const& barrier = named_[id];
      return (id == 0 ? "sync_threads" : "named barrier " + std::to_string(id)) + ", where " +
             count(barrier.n_arrived, "of ") + count(barrier.n_expected, "threads are");
    }
    default:
      return name(warp.stop);
  }
}

void Emulator::deadlocked() {
  Warp const* first = nullptr;
  Warp const* ended = nullptr;
  bool only_sync_threads = true;
  std::map<std::string, std::string> warps_by_reason;
  for (Warp const& warp : warps()) {
    if (warp.stop == Stop::kEnd) {
      ended = &warp;
      continue;
    }
    first = first == nullptr ? &warp : first;
    only_sync_threads = only_sync_threads && warp.stop == Stop::kSyncThreads;
    std::string& names = warps_by_reason[what_it_waits_for(warp)];
    names += (names.empty() ? "" : ", ") + role_of(warp);
  }
  if (only_sync_threads && ended != nullptr) {
    diverged(*first->lanes[0], *ended->lanes[0],
             "a warp waits at sync_threads, after " + std::to_string(named_[0].n_completed) +
                 " of them, and another has ended");
    return;
  }
  std::string detail;
  for (auto const& [reason, names] : warps_by_reason) {
    detail += (detail.empty() ? "" : "; ") + names + ": waits for " + reason;
  }
  for (Mbarrier const& barrier : mbarriers_.all()) {
    if (barrier.tx != 0 || barrier.issued != barrier.expected) {
      detail += "; " + barrier.name + " expects " + count(barrier.expected, "bytes, TMA brings ") +
                std::to_string(barrier.issued);
    }
  }
  auto const waiting = std::find_if(first->lanes.begin(), first->lanes.end(),
                                    [](Thread const* lane) { return lane->stop != Stop::kEnd; });
  findings_.add({.kind = "deadlock",
                 .access = {(*waiting)->site, (*waiting)->index, "wait"},
                 .detail = detail});
}

}  // namespace pyflash::emulator
