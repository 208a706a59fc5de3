#include "cute_kernels/emulator/shared_memory.h"

#include <algorithm>
#include <cstring>

#include "cute_kernels/emulator/tensor_map.h"

// Of each cell of each access.
#define PYFLASH_INLINE inline __attribute__((always_inline))

namespace pyflash::emulator {

namespace {

constexpr char const* kReaderNames[] = {"wgmma", "TMA store"};

}  // namespace

SharedMemory::SharedMemory(int bytes, int cell_bytes, int first_thread, int n_threads,
                           Findings& findings)
    : findings_(findings),
      bytes_(bytes),
      cell_bytes_(cell_bytes),
      first_thread_(first_thread),
      first_warp_(warp_of(first_thread)),
      n_warps_((n_threads + 31) / 32),
      window_(bytes, kSharedBase),
      data_(new std::byte[bytes]),
      cells_((bytes + cell_bytes - 1) / cell_bytes),
      async_reads_(n_warps_ * kReaders),
      fences_(n_threads) {}

void SharedMemory::reset(uint64_t unwritten) {
  for (int i = 0; i < bytes_; i += int{sizeof unwritten}) {
    std::memcpy(data_.get() + i, &unwritten, std::min(int{sizeof unwritten}, bytes_ - i));
  }
  std::fill(cells_.begin(), cells_.end(), Cell{});
  for (AsyncReads& reads : async_reads_) {
    if (reads.latest > 0) {
      std::fill(reads.last.begin(), reads.last.end(), AsyncRead{});
      reads.latest = 0;
    }
  }
  equal_.clear();
  for (auto& fences : fences_) {
    fences.clear();
  }
}

std::byte const* SharedMemory::read(int64_t offset, int bytes, Accessor const& who) {
  if (!check_range(offset, bytes, who, "read")) {
    return nullptr;
  }
  Problem problem;
  for (size_t i = first_cell(offset); i < end_cell(offset, bytes); ++i) {
    if (problem.kind == nullptr && !is_known(cells_[i], who)) {
      problem = check_read(i, who);
    }
    note_read(cells_[i], who);
  }
  report(problem, offset, bytes, who, "read");
  return data_.get() + offset;
}

std::byte* SharedMemory::write(int64_t offset, int bytes, void const* value, Accessor const& who) {
  if (!check_range(offset, bytes, who, "write")) {
    return nullptr;
  }
  bool const changes = std::memcmp(data_.get() + offset, value, bytes) != 0;
  note_writes(offset, bytes, who, By::kThread, changes);
  return data_.get() + offset;
}

bool SharedMemory::begin_async_write(int64_t offset, int bytes, Accessor const& who) {
  if (!check_range(offset, bytes, who, "cp.async")) {
    return false;
  }
  note_writes(offset, bytes, who, By::kCpAsync);
  // Old values must not hide a missing wait.
  std::memset(data_.get() + offset, std::to_integer<int>(kPoison), bytes);
  return true;
}

std::byte* SharedMemory::end_async_write(int64_t offset, int bytes, Accessor const& who) {
  for (size_t i = first_cell(offset); i < end_cell(offset, bytes); ++i) {
    Cell& cell = cells_[i];
    cell.in_flight = false;
    // The bytes may land this late: like the issue, the wait needs a barrier before others read, and a fence behind it.
    cell.write.epoch = who.epoch;
    cell.write.n_warp_syncs = who.n_warp_syncs;
    cell.detail = static_cast<uint32_t>(fences_of(who.thread).size());
  }
  return data_.get() + offset;
}

void SharedMemory::begin_tma_write(int64_t offset, int bytes, int mbarrier, uint32_t phase,
                                   Accessor const& who) {
  note_writes(offset, bytes, who, By::kTma);
  for (size_t i = first_cell(offset); i < end_cell(offset, bytes); ++i) {
    cells_[i].mbarrier = static_cast<int16_t>(mbarrier);
    cells_[i].detail = phase;
  }
  std::memset(data_.get() + offset, std::to_integer<int>(kPoison), bytes);
}

std::byte* SharedMemory::end_tma_write(int64_t offset, int bytes) {
  for (size_t i = first_cell(offset); i < end_cell(offset, bytes); ++i) {
    cells_[i].in_flight = false;
  }
  return data_.get() + offset;
}

void SharedMemory::begin_async_read(int64_t offset, Reader reader, uint32_t number,
                                    bool may_be_unwritten, Accessor const& who) {
  AsyncReads& reads = async_reads_of(warp_of(who.thread), reader);
  if (reads.last.empty()) {
    reads.last.resize(async_bytes_of(cells_.size() - 1) + 1);
  }
  reads.latest = number;
  Problem problem;
  for (size_t i = first_cell(offset); i < end_cell(offset, kAsyncReadBytes); ++i) {
    Cell const& cell = cells_[i];
    bool const is_right = cell.write.thread == kNobody ? may_be_unwritten
                                                       : cell.by == By::kTma && complete(cell, who);
    if (problem.kind == nullptr && !is_right) {
      problem = check_async_read(i, who);
    }
  }
  reads.last[offset / kAsyncReadBytes] = {number, static_cast<int8_t>(who.site)};
  report(problem, offset, kAsyncReadBytes, who, kReaderNames[static_cast<int>(reader)]);
}

bool SharedMemory::check_range(int64_t offset, int bytes, Accessor const& who, char const* what) {
  Problem problem;
  if (offset < 0 || offset + bytes > bytes_) {
    problem.kind = "out_of_bounds";
  } else if (offset % bytes != 0 || bytes % cell_bytes_ != 0) {
    problem.kind = "misaligned";
  }
  report(problem, offset, bytes, who, what);
  return problem.kind == nullptr;
}

PYFLASH_INLINE SharedMemory::Event SharedMemory::event(Accessor const& who) {
  return {who.epoch, who.n_warp_syncs, static_cast<int16_t>(who.thread),
          static_cast<int8_t>(who.site)};
}

PYFLASH_INLINE bool SharedMemory::ordered(Event const& before, Accessor const& now) {
  return is_ordered(before.thread, before.epoch, before.n_warp_syncs, now);
}

// Whether the bytes of an asynchronous write are known to have come.
PYFLASH_INLINE bool SharedMemory::complete(Cell const& cell, Accessor const& who) {
  return !cell.in_flight && (cell.by != By::kTma || who.known->phases[cell.mbarrier] > cell.detail);
}

// Whether what was written there last is known to have been.
PYFLASH_INLINE bool SharedMemory::is_known(Cell const& cell, Accessor const& who) {
  return cell.write.thread != kNobody && complete(cell, who) &&
         (cell.by == By::kTma || ordered(cell.write, who));
}

Access SharedMemory::writer(Cell const& cell) {
  constexpr char const* kWhat[] = {"write", "cp.async", "TMA load"};
  return {cell.write.site, cell.write.thread, kWhat[static_cast<int>(cell.by)]};
}

// Whether a fence of the async proxy stands between a thread's store and now: its own, or that of another who knew of it.
bool SharedMemory::fenced(Event const& write, uint32_t n_fences, Accessor const& who) const {
  int const warp = warp_of(write.thread);
  auto const& fences = fences_of(write.thread);
  if (n_fences < fences.size()) {
    return warp == warp_of(who.thread) || fences[n_fences] <= who.known->warps[warp];
  }
  return warp != warp_of(who.thread) && write.epoch <= who.known->fenced[warp];
}

// Whether one of the stores of the same bytes is known. async: to the async proxy.
bool SharedMemory::knows_equal(size_t i, Accessor const& who, bool async) const {
  if (!cells_[i].has_equal) {
    return false;
  }
  auto const& writers = equal_.at(i);
  return std::any_of(writers.begin(), writers.end(), [&](EqualWriter const& writer) {
    bool const own_warp = warp_of(writer.event.thread) == warp_of(who.thread);
    return async ? (own_warp || ordered(writer.event, who)) &&
                       fenced(writer.event, writer.n_fences, who)
                 : ordered(writer.event, who);
  });
}

SharedMemory::Problem SharedMemory::check_read(size_t i, Accessor const& who) const {
  Cell const& cell = cells_[i];
  if (cell.write.thread == kNobody) {
    return {"uninitialised_read", {}};
  }
  if (!complete(cell, who)) {
    return {"in_flight_read", writer(cell)};
  }
  if (cell.by != By::kTma && !ordered(cell.write, who) && !knows_equal(i, who, false)) {
    return {"race", writer(cell)};
  }
  return {};
}

// NOTE: a warpgroup MMA is for all lanes of a warp at once, after all that any of them did.
SharedMemory::Problem SharedMemory::check_async_read(size_t i, Accessor const& who) const {
  Cell const& cell = cells_[i];
  if (cell.by == By::kTma || cell.write.thread == kNobody ||
      warp_of(cell.write.thread) != warp_of(who.thread)) {
    Problem const problem = check_read(i, who);
    if (problem.kind != nullptr || cell.by == By::kTma) {
      return problem;
    }
  }
  if (fenced(cell.write, cell.detail, who) || knows_equal(i, who, true)) {
    return {};
  }
  return {"missing_proxy_fence", writer(cell)};
}

SharedMemory::Problem SharedMemory::check_write(size_t i, Accessor const& who, bool changes) const {
  Cell const& cell = cells_[i];
  if (!changes && cell.write.thread != kNobody && cell.by == By::kThread) {
    return {};
  }
  if (cell.has_equal) {
    for (EqualWriter const& other : equal_.at(i)) {
      if (!ordered(other.event, who)) {
        return {"race", {other.event.site, other.event.thread, "write"}};
      }
    }
  }
  if (cell.write.thread != kNobody &&
      (!complete(cell, who) || (cell.by != By::kTma && !ordered(cell.write, who)))) {
    return {"race", writer(cell)};
  }
  for (Event const& read : {cell.read, cell.other_read}) {
    if (read.thread != kNobody && !ordered(read, who)) {
      return {"race", {read.site, read.thread, "read"}};
    }
  }
  return {};
}

// Whether all of them are known to be complete, wherever they read.
bool SharedMemory::knows_async_reads(Accessor const& who) const {
  AsyncReads const* reads = async_reads_.data();
  for (int warp = first_warp_; warp < first_warp_ + n_warps_; ++warp, reads += kReaders) {
    if (reads[0].latest > who.known->mmas[warp] || reads[1].latest > who.known->stores[warp]) {
      return false;
    }
  }
  return true;
}

SharedMemory::Problem SharedMemory::check_async_reads(size_t i, Accessor const& who) const {
  size_t const at = async_bytes_of(i);
  AsyncReads const* reads = async_reads_.data();
  for (int warp = first_warp_; warp < first_warp_ + n_warps_; ++warp) {
    for (uint32_t const complete : {who.known->mmas[warp], who.known->stores[warp]}) {
      if (reads->latest > complete && reads->last[at].number > complete) {
        auto const reader = (reads - async_reads_.data()) % kReaders;
        return {"race", {reads->last[at].site, 32 * warp, kReaderNames[reader]}};
      }
      ++reads;
    }
  }
  return {};
}

// Keeps the readers that a later write is checked against. Of readers that do not know of each other two are enough: if
// there are any of two warps, one of them is not the writer's; if all are of one warp, those before its last sync do
// not matter to it.
PYFLASH_INLINE void SharedMemory::note_read(Cell& cell, Accessor const& who) {
  Event& first = cell.read;
  Event& other = cell.other_read;
  if (other.thread != kNobody && ordered(other, who)) {
    other = {};
  }
  if (first.thread == kNobody || ordered(first, who)) {
    first = event(who);
    return;
  }
  if (other.thread == kNobody || warp_of(other.thread) == warp_of(first.thread)) {
    other = event(who);
  }
}

void SharedMemory::note_write(size_t i, Accessor const& who, By by, bool changes) {
  Cell& cell = cells_[i];
  if (changes || cell.write.thread == kNobody || cell.by != By::kThread) {
    cell.has_equal = false;
  } else if (!ordered(cell.write, who)) {
    if (!cell.has_equal) {
      equal_[i].clear();
    }
    cell.has_equal = true;
    equal_[i].push_back({cell.write, cell.detail});
  }
  cell.write = event(who);
  cell.detail = static_cast<uint32_t>(fences_of(who.thread).size());
  cell.by = by;
  cell.in_flight = by != By::kThread;
}

void SharedMemory::note_writes(int64_t offset, int bytes, Accessor const& who, By by,
                               bool changes) {
  Problem problem;
  bool const knows_reads = knows_async_reads(who);
  size_t checked = cells_.size();  // the bytes whose asynchronous reads were checked last
  for (size_t i = first_cell(offset); i < end_cell(offset, bytes); ++i) {
    Cell const& cell = cells_[i];
    if (problem.kind == nullptr) {
      problem = check_write(i, who, changes);
      // What changes no byte disturbs no reader.
      bool const disturbs = changes || cell.write.thread == kNobody || cell.by != By::kThread;
      if (problem.kind == nullptr && disturbs && !knows_reads && async_bytes_of(i) != checked) {
        problem = check_async_reads(i, who);
        checked = async_bytes_of(i);
      }
      bool const by_generic_proxy = cell.write.thread != kNobody && cell.by != By::kTma;
      if (problem.kind == nullptr && by == By::kTma && by_generic_proxy &&
          !fenced(cell.write, cell.detail, who)) {
        problem = {"missing_proxy_fence", writer(cell)};
      }
    }
    note_write(i, who, by, changes);
  }
  constexpr char const* kWhat[] = {"write", "cp.async", "TMA load"};
  report(problem, offset, bytes, who, kWhat[static_cast<int>(by)]);
}

void SharedMemory::add_finding(Problem const& problem, int64_t offset, int bytes,
                               Accessor const& who, char const* what) {
  int const warp = warp_of(who.thread) - first_warp_;
  findings_.add({.kind = problem.kind,
                 .memory = warp >= 0 && warp < n_warps_ ? "shared" : kSharedOfAnother,
                 .offset = offset,
                 .bytes = bytes,
                 .access = {who.site, who.thread, what},
                 .other = problem.other});
}

}  // namespace pyflash::emulator
