// What the warps of one CTA do, each in its order, and what they wait for: from that the order in which it all depends on
// each other follows. Of the warps of a warpgroup the first stands for all, and of a warp its first lane.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cute_kernels/emulator/clock.h"

namespace pyflash::emulator {

struct TimelineEvent {
  // Numbers: of an mbarrier and its phase, of a named barrier and how often it was complete before, of bytes, columns,
  // exponentials, groups in flight.
  enum Kind {
    kExponentials,  // n
    kArrive,        // mbarrier, phase
    kWait,          // mbarrier, phase
    kLoad,          // mbarrier, phase, bytes
    kNamedArrive,   // barrier, generation
    kNamedSync,     // barrier, generation
    kMma,           // N
    kCommit,
    kMmaWait  // n_pending
  };

  int warp;
  Kind kind;
  int site;
  int64_t a = 0;
  int64_t b = 0;
  int64_t c = 0;
};
inline constexpr char const* kTimelineKinds[] = {"exponentials", "arrive",       "wait",
                                                 "load",         "named_arrive", "named_sync",
                                                 "mma",          "commit",       "mma_wait"};

class Timeline {
 public:
  static constexpr size_t kMaxEvents = 50'000;
  static constexpr int kWarpgroupWarps = 4;

  // Turns on the log of the CTA that runs, or the first of its cluster; only one is kept.
  void set_on(bool on, int n_warps) {
    on_ = on;
    n_warps_ = n_warps;
  }
  void add(TimelineEvent const& event) {
    if (!on_ || event.warp >= n_warps_ || !stands_for_others(event.warp) ||
        events_.size() >= kMaxEvents) {
      return;
    }
    if (exponentials_[event.warp] > 0) {
      int64_t const n = exponentials_[event.warp];
      exponentials_[event.warp] = 0;
      events_.push_back({event.warp, TimelineEvent::kExponentials, event.site, n});
    }
    events_.push_back(event);
  }
  // Counts an exponential of one lane.
  void add_exponential(int warp) { ++exponentials_[warp]; }
  std::vector<TimelineEvent> const& events() const { return events_; }

 private:
  // Loading warps differ from each other.
  static bool stands_for_others(int warp) {
    return warp < kWarpgroupWarps || warp % kWarpgroupWarps == 0;
  }

  bool on_ = false;
  int n_warps_ = 0;
  std::array<int64_t, kMaxWarps> exponentials_{};
  std::vector<TimelineEvent> events_;
};

}  // namespace pyflash::emulator
