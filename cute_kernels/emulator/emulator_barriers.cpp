// Votes and barriers of the CTA, what is left of barriers when it ends, and what is wrong where nothing goes on.
#include <algorithm>
#include <map>

#include "cute_kernels/emulator/emulator.h"

namespace pyflash::emulator {

namespace {

std::string count(int64_t n, char const* what) { return std::to_string(n) + " " + what; }

}  // namespace

bool Emulator::elect_one() {
  stop(Stop::kElect);
  return current().vote;
}

bool Emulator::any_lane(bool value) {
  current().vote = value;
  stop(Stop::kAny);
  return current().vote;
}

void Emulator::stmatrix(uint32_t const* words, void* row) {
  current().stmatrix = {words, row};
  stop(Stop::kStmatrix);
}

void Emulator::named_barrier(int id, int n_threads, bool waits) {
  if (id < 0 || id >= static_cast<int>(cta().named.size()) || n_threads % kLanes != 0 ||
      n_threads <= 0) {
    fail("a named barrier is one of 16, for a multiple of 32 threads");
  }
  current().barrier = {id, n_threads, waits};
  stop(Stop::kNamedBarrier);
}

bool Emulator::meet_barrier(Warp& warp, int id, int n_threads, bool waits) {
  NamedBarrier& barrier = cta().named[id];
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

void Emulator::end_barriers(Cta& cta) {
  for (size_t id = 0; id < cta.named.size(); ++id) {
    if (cta.named[id].n_arrived > 0) {
      findings_.add({.kind = "arrivals_left",
                     .access = cta.named[id].first,
                     .detail = "named barrier " + std::to_string(id) + " has " +
                               count(cta.named[id].n_arrived, "of ") +
                               std::to_string(cta.named[id].n_expected) + " threads"});
    }
  }
  for (Mbarrier const& barrier : cta.mbarriers.all()) {
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
  int const n_warps = kernel_.n_threads / kLanes;
  int const in_cta = warp.index() % n_warps;
  std::string const role = kernel_.role(in_cta);
  std::string number = "warp " + std::to_string(in_cta);
  if (ctas_.size() > 1) {
    number += " of rank " + std::to_string(warp.index() / n_warps);
  }
  return role.empty() ? number : number + " (" + role + ")";
}

std::string Emulator::what_it_waits_for(Warp const& warp) {
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
             std::to_string(cta_of(warp).free_registers);
    case Stop::kSyncThreads:
    case Stop::kNamedBarrier: {
      int const id = warp.stop == Stop::kSyncThreads ? 0 : lane.barrier.id;
      NamedBarrier const& barrier = cta_of(warp).named[id];
      return (id == 0 ? "sync_threads" : "named barrier " + std::to_string(id)) + ", where " +
             count(barrier.n_arrived, "of ") + count(barrier.n_expected, "threads are");
    }
    case Stop::kCluster:
      return "cluster_sync, where " + count(int64_t(cluster_barrier_.waiting.size()), "of ") +
             count(int64_t(warps().size()), "warps are");
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
             "a warp waits at sync_threads, after " +
                 std::to_string(cta_of(*first).named[0].n_completed) +
                 " of them, and another has ended");
    return;
  }
  std::string detail;
  for (auto const& [reason, names] : warps_by_reason) {
    detail += (detail.empty() ? "" : "; ") + names + ": waits for " + reason;
  }
  for (Cta& cta : ctas_) {
    for (Mbarrier const& barrier : cta.mbarriers.all()) {
      if (barrier.tx != 0 || barrier.issued != barrier.expected) {
        detail += "; " + barrier.name + " expects " +
                  count(barrier.expected, "bytes, TMA brings ") + std::to_string(barrier.issued);
      }
    }
  }
  auto const waiting = std::find_if(first->lanes.begin(), first->lanes.end(),
                                    [](Thread const* lane) { return lane->stop != Stop::kEnd; });
  findings_.add({.kind = "deadlock",
                 .access = {(*waiting)->site, (*waiting)->index, "wait"},
                 .detail = detail});
}

}  // namespace pyflash::emulator
