#include "cute_kernels/emulator/shared_memory.h"

#include <algorithm>
#include <cstring>

namespace pyflash::emulator {

namespace {

constexpr int warp_of(int thread) { return thread / 32; }

}  // namespace

SharedMemory::SharedMemory(int bytes, Findings& findings)
    : findings_(findings),
      bytes_(bytes),
      window_(bytes),
      data_(new std::byte[bytes]),
      cells_((bytes + kCellBytes - 1) / kCellBytes) {}

void SharedMemory::reset() {
  std::memset(data_.get(), std::to_integer<int>(kPoison), bytes_);
  std::fill(cells_.begin(), cells_.end(), Cell{});
}

std::byte const* SharedMemory::read(int64_t offset, int bytes, Accessor const& who) {
  if (!check_range(offset, bytes, who, "read")) {
    return nullptr;
  }
  Problem problem;
  for (int64_t i = offset / kCellBytes; i < (offset + bytes) / kCellBytes; ++i) {
    if (problem.kind == nullptr) {
      problem = check_read(cells_[i], who);
    }
    note_read(cells_[i], who);
  }
  report(problem, offset, bytes, who, "read");
  return data_.get() + offset;
}

std::byte* SharedMemory::write(int64_t offset, int bytes, Accessor const& who) {
  if (!check_range(offset, bytes, who, "write")) {
    return nullptr;
  }
  note_writes(offset, bytes, who, false);
  return data_.get() + offset;
}

bool SharedMemory::begin_async_write(int64_t offset, int bytes, Accessor const& who) {
  if (!check_range(offset, bytes, who, "cp.async")) {
    return false;
  }
  note_writes(offset, bytes, who, true);
  // So that what was there before cannot hide a missing wait.
  std::memset(data_.get() + offset, std::to_integer<int>(kPoison), bytes);
  return true;
}

std::byte* SharedMemory::end_async_write(int64_t offset, int bytes, Accessor const& who) {
  for (int64_t i = offset / kCellBytes; i < (offset + bytes) / kCellBytes; ++i) {
    Cell& cell = cells_[i];
    cell.in_flight = false;
    // The bytes may have come this late: as much as the issue, this needs a barrier before others read.
    cell.write.n_barriers = who.n_barriers;
    cell.write.n_warp_syncs = who.n_warp_syncs;
  }
  return data_.get() + offset;
}

bool SharedMemory::check_range(int64_t offset, int bytes, Accessor const& who, char const* what) {
  Problem problem;
  if (offset < 0 || offset + bytes > bytes_) {
    problem.kind = "out_of_bounds";
  } else if (offset % bytes != 0 || bytes % kCellBytes != 0) {
    problem.kind = "misaligned";
  }
  report(problem, offset, bytes, who, what);
  return problem.kind == nullptr;
}

// Whether a barrier of the CTA, or of the warp that both are in, stands between the event and now.
bool SharedMemory::ordered(Event const& before, Accessor const& now) {
  return before.thread == now.thread || before.n_barriers != now.n_barriers ||
         (warp_of(before.thread) == warp_of(now.thread) && before.n_warp_syncs != now.n_warp_syncs);
}

Access SharedMemory::writer(Cell const& cell) {
  return {cell.write.site, cell.write.thread, cell.by_async ? "cp.async" : "write"};
}

SharedMemory::Problem SharedMemory::check_read(Cell const& cell, Accessor const& who) {
  if (cell.in_flight) {
    return {"in_flight_read", writer(cell)};
  }
  if (cell.write.thread == kNobody) {
    return {"uninitialised_read", {}};
  }
  if (!ordered(cell.write, who)) {
    return {"race", writer(cell)};
  }
  return {};
}

SharedMemory::Problem SharedMemory::check_write(Cell const& cell, Accessor const& who) {
  if (cell.in_flight || (cell.write.thread != kNobody && !ordered(cell.write, who))) {
    return {"race", writer(cell)};
  }
  Event const& read = cell.read;
  if (read.thread == kNobody || read.n_barriers != who.n_barriers) {
    return {};
  }
  if (!ordered(read, who)) {
    return {"race", {read.site, read.thread, "read"}};
  }
  // If the other reader is of the writer's warp, so is the first, and both read after the same sync of it.
  Event other = read;
  other.thread = cell.other_reader;
  if (other.thread != kNobody && !ordered(other, who)) {
    return {"race", {cell.other_site, other.thread, "read"}};
  }
  return {};
}

// Keeps what a later write has to be held against. Of readers since the last barrier two are enough: if there are any of
// two warps, one of them is not the writer's; if all are of one warp, older ones than its last sync do not matter to it.
void SharedMemory::note_read(Cell& cell, Accessor const& who) {
  Event& first = cell.read;
  bool const one_warp =
      cell.other_reader == kNobody || warp_of(cell.other_reader) == warp_of(first.thread);
  if (first.thread == kNobody || first.n_barriers != who.n_barriers ||
      (one_warp && warp_of(first.thread) == warp_of(who.thread) &&
       first.n_warp_syncs != who.n_warp_syncs)) {
    first = {who.n_barriers, who.n_warp_syncs, static_cast<int16_t>(who.thread),
             static_cast<int8_t>(who.site)};
    cell.other_reader = kNobody;
  } else if (one_warp && who.thread != first.thread) {
    cell.other_reader = static_cast<int16_t>(who.thread);
    cell.other_site = static_cast<int8_t>(who.site);
  }
}

void SharedMemory::note_writes(int64_t offset, int bytes, Accessor const& who, bool async) {
  Problem problem;
  for (int64_t i = offset / kCellBytes; i < (offset + bytes) / kCellBytes; ++i) {
    Cell& cell = cells_[i];
    if (problem.kind == nullptr) {
      problem = check_write(cell, who);
    }
    cell.write = {who.n_barriers, who.n_warp_syncs, static_cast<int16_t>(who.thread),
                  static_cast<int8_t>(who.site)};
    cell.by_async = cell.in_flight = async;
  }
  report(problem, offset, bytes, who, async ? "cp.async" : "write");
}

void SharedMemory::report(Problem const& problem, int64_t offset, int bytes, Accessor const& who,
                          char const* what) {
  if (problem.kind != nullptr) {
    findings_.add({.kind = problem.kind,
                   .memory = "shared",
                   .offset = offset,
                   .bytes = bytes,
                   .access = {who.site, who.thread, what},
                   .other = problem.other});
  }
}

}  // namespace pyflash::emulator
