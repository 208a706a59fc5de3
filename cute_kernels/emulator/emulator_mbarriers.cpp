// mbarriers: arrivals, bytes, waits, and what is wrong with them.
#include <algorithm>

#include "cute_kernels/emulator/emulator.h"

namespace pyflash::emulator {

void Emulator::mbarrier_init(void* address, int n_arrivals) {
  Thread const& thread = current();
  int64_t const offset = cta().shared.offset(address);
  if (!cta().shared.contains(address) || offset < 0 || offset + 8 > cta().shared.size() ||
      offset % 8 != 0) {
    fail("an mbarrier is 8 bytes of shared memory, aligned to them");
  }
  Mbarrier* const barrier = cta().mbarriers.init(offset, n_arrivals);
  if (barrier == nullptr) {
    fail("more mbarriers than the emulator has room for, 512 in a cluster");
  }
  barrier->init_warp = thread.index / kLanes;
  barrier->init_epoch = current_warp().epoch;
}

void Emulator::fence_mbarrier_init() {
  Warp const& warp = current_warp();
  for (Mbarrier& barrier : cta().mbarriers.all()) {
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

// What a thread sees may be old, where the order is random.
bool Emulator::mbarrier_test(void* address, uint32_t parity) {
  Mbarrier& barrier = mbarrier_at(address, "tests");
  check_visible(barrier, current_warp(), {current().site, current().index, "test"}, false);
  return barrier.passed(parity) && (order() != Order::kRandom || random() % 4 != 0);
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
  uint32_t& known = warp.known.phases[barrier.index];
  if (known < barrier.phase) {  // else another lane has waited for it
    warp.known.join(barrier.complete);
    known = barrier.phase;
  }
  return true;
}

// What they are for

Mbarrier& Emulator::mbarrier_at(void* address, char const* what) {
  Thread const& thread = current();
  int64_t const offset = cta().shared.offset(address);
  Mbarrier* const barrier = cta().shared.contains(address) ? cta().mbarriers.find(offset) : nullptr;
  if (barrier == nullptr) {
    findings_.add({.kind = "barrier_not_initialised",
                   .memory = cta().mbarriers.name_at(offset),
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

// Only those who waited for a stage's fill may release it, and the next fill follows all releases.
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
                   .detail = phase + " was complete with " + std::to_string(barrier.expected) +
                             " bytes" + ", and TMA brings " + std::to_string(barrier.issued)});
  }
  barrier.expected = barrier.issued = 0;
}

}  // namespace pyflash::emulator
