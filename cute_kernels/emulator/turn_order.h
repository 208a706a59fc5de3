// Sums that CTAs add to in turns: whether each addition knows of the one before it, which another CTA has made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cute_kernels/emulator/clock.h"
#include "cute_kernels/emulator/findings.h"
#include "cute_kernels/emulator/shared_memory.h"

namespace pyflash::emulator {

class TurnOrder {
 public:
  // CTAs of a cluster begin, and no others go on.
  void begin() { taken_.clear(); }

  // cta: a number among those of the launch, as below. is_anyones: the turn has no order.
  void take(float const* turn, bool is_anyones, int64_t cta, Accessor const& who) {
    auto const given = given_.find(turn);
    taken_.push_back({cta, who, is_anyones, given == given_.end() ? nullptr : given->second});
  }
  void give(float const* turn, int64_t cta, Accessor const& who) {
    given_[turn] = std::make_shared<Given>(Given{cta, who, *who.known});
  }

  // Returns who added before where that is not known; else nullptr.
  Access const* add(void const* address, int64_t cta, Accessor const& who, Access const& access) {
    auto const [place, is_first] = added_.try_emplace(address);
    Added const before = place->second;
    place->second = {cta, who, access};
    if (is_first || before.cta == cta || knows(cta, who, before)) {
      return nullptr;
    }
    before_ = before.access;
    return &before_;
  }

 private:
  struct Given {
    int64_t cta;
    Accessor who;
    Clock known;  // then
  };
  struct Taken {
    int64_t cta;
    Accessor who;
    bool is_anyones;
    std::shared_ptr<Given const> given;  // the last time, if it was
  };
  struct Added {
    int64_t cta;
    Accessor who;
    Access access;
  };

  // Whether a turn that was given behind the addition was taken before now.
  bool knows(int64_t cta, Accessor const& now, Added const& before) const {
    return std::any_of(taken_.rbegin(), taken_.rend(), [&](Taken const& taken) {
      bool const is_behind =
          taken.is_anyones || (taken.given && taken.given->cta == before.cta &&
                               is_ordered(before.who, taken.given->who, taken.given->known));
      return is_behind && taken.cta == cta && is_ordered(taken.who, now, *now.known);
    });
  }

  // known: to the second.
  static bool is_ordered(Accessor const& first, Accessor const& second, Clock const& known) {
    if (first.thread == second.thread) {
      return true;
    }
    int const warp = first.thread / kLanes;
    return warp == second.thread / kLanes ? first.n_warp_syncs != second.n_warp_syncs
                                          : first.epoch <= known.warps[warp];
  }

  std::vector<Taken> taken_;  // by the CTAs that run
  std::unordered_map<float const*, std::shared_ptr<Given const>> given_;
  std::unordered_map<void const*, Added> added_;
  Access before_;
};

}  // namespace pyflash::emulator
