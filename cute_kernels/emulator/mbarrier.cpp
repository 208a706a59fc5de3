#include "cute_kernels/emulator/mbarrier.h"

#include <algorithm>

namespace pyflash::emulator {

namespace {

constexpr int kBytes = 8;

}  // namespace

bool Mbarrier::complete_phase() {
  if (n_pending > 0 || tx != 0) {
    return false;
  }
  carried = expected > 0 || issued > 0;
  awaited = false;
  complete = gathering;
  gathering = {};
  n_pending = n_arrivals;
  ++phase;
  return true;
}

Mbarrier* Mbarriers::init(int64_t offset, int n_arrivals) {
  Mbarrier* barrier = find(offset);
  if (barrier == nullptr) {
    if (static_cast<int>(all_.size()) == max_) {
      return nullptr;
    }
    all_.emplace_back();
    barrier = &all_.back();
    barrier->index = first_ + static_cast<int>(all_.size()) - 1;
    barrier->offset = offset;
    barrier->name = name_at(offset);
  }
  barrier->n_arrivals = barrier->n_pending = n_arrivals;
  for (SmemRing const& ring : rings_) {
    for (int stage = 0; stage < ring.n_stages; ++stage) {
      Mbarrier* const full = find(ring.full + stage * kBytes);
      Mbarrier* const empty = find(ring.empty + stage * kBytes);
      if (full != nullptr && empty != nullptr) {
        full->empty = empty;
        empty->full = full;
      }
    }
  }
  return barrier;
}

Mbarrier* Mbarriers::find(int64_t offset) {
  auto const found =
      std::find_if(all_.begin(), all_.end(), [&](Mbarrier const& b) { return b.offset == offset; });
  return found == all_.end() ? nullptr : &*found;
}

std::string Mbarriers::name_at(int64_t offset) const {
  for (SmemRing const& ring : rings_) {
    for (auto const& [first, word] :
         {std::pair(ring.full, "full"), std::pair(ring.empty, "empty")}) {
      int64_t const stage = (offset - first) / kBytes;
      if (offset >= first && stage < ring.n_stages && (offset - first) % kBytes == 0) {
        return std::string(ring.name) + " " + word + "[" + std::to_string(stage) + "]";
      }
    }
  }
  return "mbarrier at byte " + std::to_string(offset);
}

}  // namespace pyflash::emulator
