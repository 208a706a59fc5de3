// mbarriers in shared memory: phases, arrivals, transactions, and faults in their use.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string>

#include "cute_kernels/emulator/clock.h"
#include "cute_kernels/emulator/findings.h"
#include "cute_kernels/emulator/machine.h"

namespace pyflash::emulator {

struct Mbarrier {
  int index;  // in clocks
  int64_t offset;
  std::string name;
  int n_arrivals;        // that a phase takes
  int n_pending;         // of these, those still to come
  int64_t tx = 0;        // bytes still to come
  uint32_t phase = 0;    // the one that is not complete
  int64_t expected = 0;  // bytes of this phase, and those that TMA loads bring
  int64_t issued = 0;
  bool carried = false;  // the last complete phase brought bytes
  bool awaited = true;   // and somebody waited for it
  Access expect;         // the last that announced bytes
  Clock gathering;       // what those who have arrived in this phase knew
  Clock complete;        // what those of the last complete phase did

  // Who initialised it, and whether and when TMA can see that.
  int init_warp;
  uint32_t init_epoch;
  bool init_fenced = false;
  uint32_t fence_epoch = 0;

  // By warp: phases that it has waited for, and arrivals.
  std::array<uint32_t, kMaxWarps> waited{};
  std::array<uint32_t, kMaxWarps> arrived{};
  // The other mbarrier of the same stage of a ring.
  Mbarrier* full = nullptr;   // of an empty one
  Mbarrier* empty = nullptr;  // of a full one

  // What try_wait.parity tells.
  bool passed(uint32_t parity) const { return (phase & 1) != parity; }
  // Whether the phase was complete with this; begins the next one.
  bool complete_phase();
};

class Mbarriers {
 public:
  // first, max: of the indices in clocks.
  Mbarriers(Span<SmemRing> rings, int first, int max) : rings_(rings), first_(first), max_(max) {}

  void reset() { all_.clear(); }
  // nullptr: there are more of them than clocks have room for.
  Mbarrier* init(int64_t offset, int n_arrivals);
  // nullptr: none was initialised there.
  Mbarrier* find(int64_t offset);
  std::string name_at(int64_t offset) const;
  std::deque<Mbarrier>& all() { return all_; }

 private:
  Span<SmemRing> rings_;
  int first_;
  int max_;
  std::deque<Mbarrier> all_;
};

}  // namespace pyflash::emulator
