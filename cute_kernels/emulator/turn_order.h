// Sums that CTAs add to in turns: whether each addition knows of the one before it, by another CTA.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cute_kernels/emulator/clock.h"
#include "cute_kernels/emulator/findings.h"
#include "cute_kernels/emulator/shared_memory.h"

namespace pyflash::emulator {

class TurnOrder {
 public:
  // The CTAs of the next cluster begin. Those of the one before have ended.
  void begin() { taken_.clear(); }

  // A thread has read a turn, or given it to the next CTA. cta: its number in the launch. in_any_order: the turn is everyone's.
  void take(float const* turn, bool in_any_order, int64_t cta, Accessor const& who) {
    auto const given = given_.find(turn);
    taken_.push_back({cta, who, in_any_order, given == given_.end() ? nullptr : given->second});
  }
  void give(float const* turn, int64_t cta, Accessor const& who) {
    given_[turn] = std::make_shared<Given>(Given{cta, who, *who.known});
  }

  // A thread adds to an address. Returns the addition before, of another CTA, if the thread does not know of it.
  std::optional<Access> add(void const* address, int64_t cta, Accessor const& who,
                            Access const& access) {
    auto const [place, is_first] = added_.try_emplace(address);
    Added const before = place->second;
    place->second = {cta, who, access};
    if (is_first || before.cta == cta || knows(cta, who, before)) {
      return std::nullopt;
    }
    return before.access;
  }

 private:
  // NOTE: of an Accessor that is kept, what its warp knows changes.
  struct Given {
    int64_t cta;
    Accessor who;
    Clock known;  // to its warp, then
  };
  struct Taken {
    int64_t cta;
    Accessor who;
    bool in_any_order;
    std::shared_ptr<Given const> given;  // nullptr: by no CTA
  };
  struct Added {
    int64_t cta;
    Accessor who;
    Access access;
  };

  static bool is_before(Accessor const& first, Accessor const& second) {
    return is_ordered(first.thread, first.epoch, first.n_warp_syncs, second);
  }

  // Whether the CTA has taken a turn that was given after the addition, and the thread knows that.
  bool knows(int64_t cta, Accessor const& now, Added const& before) const {
    return std::any_of(taken_.rbegin(), taken_.rend(), [&](Taken const& taken) {
      return taken.cta == cta && is_before(taken.who, now) &&
             (taken.in_any_order || (taken.given && covers(*taken.given, before)));
    });
  }
  static bool covers(Given const& given, Added const& added) {
    Accessor giver = given.who;
    giver.known = &given.known;
    return given.cta == added.cta && is_before(added.who, giver);
  }

  std::vector<Taken> taken_;                                              // by the CTAs that run
  std::unordered_map<float const*, std::shared_ptr<Given const>> given_;  // the last time
  std::unordered_map<void const*, Added> added_;                          // the last time
};

}  // namespace pyflash::emulator
