// Warpgroup MMAs: issued by four warps, each for its 16 rows, and complete when these wait for them.
#include <algorithm>
#include <cstring>

#include "cute_kernels/emulator/emulator.h"

namespace pyflash::emulator {

void Emulator::warpgroup_mma(WarpgroupMma const& mma) {
  current().warpgroup_mma = &mma;
  stop(Stop::kWarpgroupMma);
}
void Emulator::mma_fence() { stop(Stop::kMmaFence); }
void Emulator::mma_commit() { stop(Stop::kMmaCommit); }
void Emulator::mma_wait(int n_pending) {
  current().n_pending = n_pending;
  stop(Stop::kMmaWait);
}

void Emulator::fence_async_proxy() {
  Thread const& thread = current();
  Warp& warp = current_warp();
  ++counts_.proxy_fences;
  cta().shared.fence(accessor(thread, thread.site));
  for (int i = 0; i < kMaxWarps; ++i) {
    warp.known.fenced[i] = std::max(warp.known.fenced[i], warp.known.warps[i]);
  }
}

uint32_t Emulator::shared_address(void const* address) {
  return static_cast<uint32_t>(kSharedBase + cta().shared.offset(address));
}

void Emulator::meet_warpgroup_mma(Warp& warp) {
  Thread const& first = *warp.lanes[0];
  WarpgroupMma const& mma = *first.warpgroup_mma;
  check_same_in_warpgroup(warp, mma);
  check_fences(warp);
  MmaInFlight op{.mma = mma, .accumulator = accumulator_of(warp), .site = first.site};
  op.number = ++warp.mmas.n_issued;
  for (int lane = 0; lane < kLanes; ++lane) {
    op.a[lane] = warp.lanes[lane]->warpgroup_mma->a;
  }
  ++op.accumulator->n_in_flight;
  if (mma.a == nullptr) {
    int const first_row = warp.index() % kWarpgroupWarps * kMmaRows;
    check_operand(warp, mma.a_desc, mma.a_is_mn_major, true, first_row, kMmaRows);
  }
  check_operand(warp, mma.b_desc, mma.b_is_mn_major, false, 0, mma.n);
  watch_registers(warp);
  log(first, TimelineEvent::kMma, mma.n);
  warp.mmas.in_flight.push_back(op);
  ++warp.mmas.n_uncommitted;
}

// The n-th of each of the four warps is one instruction.
void Emulator::check_same_in_warpgroup(Warp& warp, WarpgroupMma const& mma) {
  auto& issued = issued_[warp.index() / kWarpgroupWarps];
  Thread const& first = *warp.lanes[0];
  size_t const i = warp.mmas.n_issued;
  if (i == issued.size()) {
    issued.emplace_back(mma, first.index);
    int64_t const flops = int64_t{2} * kWarpgroupWarps * kMmaRows * mma.n * kMmaDepth;
    ++(mma.a == nullptr ? counts_.wgmma_ss : counts_.wgmma_rs);
    (mma.a == nullptr ? counts_.wgmma_flops_ss : counts_.wgmma_flops_rs) += flops;
  } else if (!same_instruction(issued[i].first, mma)) {
    findings_.add({.kind = "divergence",
                   .access = {first.site, first.index, "wgmma"},
                   .other = {first.site, issued[i].second, "wgmma"},
                   .detail = "the warps of a warpgroup issue different MMAs"});
  }
}

void Emulator::check_tile(int64_t offset, int bytes, Access const& access) {
  for (SmemTile const& tile : kernel_.tiles) {
    int64_t const in_tile = offset - tile.offset;
    if (in_tile < 0 || in_tile >= int64_t{tile.bytes} * tile.n_stages) {
      continue;
    }
    if (in_tile % tile.bytes + bytes > tile.bytes) {
      findings_.add({.kind = "outside_tile",
                     .memory = "shared",
                     .offset = offset,
                     .bytes = bytes,
                     .access = access,
                     .detail = std::string("a stage of ") + tile.name + " ends within"});
    }
    return;
  }
}

// A matrix operand in shared memory: all of it inside, and in one stage of one tile; every byte there and complete.
void Emulator::check_operand(Warp& warp, uint64_t bits, bool mn_major, bool is_a, int first_row,
                             int rows) {
  Thread const& first = *warp.lanes[0];
  Access const access{first.site, first.index, "wgmma"};
  Descriptor const descriptor(bits);
  if (descriptor.base_offset != 0) {
    findings_.add(
        {.kind = "unsupported", .access = access, .detail = "a descriptor with a base offset"});
  }
  Accessor const who = accessor(first, first.site);
  uint32_t const number = warp.mmas.n_issued;
  int64_t lowest = cta().shared.size();
  int64_t highest = 0;
  bool inside = true;
  auto const offset_of = [&](int i, int j) {
    return int64_t{descriptor.chunk(mn_major, i, j)} - kSharedBase;
  };
  auto const is_inside = [&](int64_t offset) {
    return offset >= 0 && offset + kChunkBytes <= cta().shared.size();
  };
  // A row of A is that of D and no other: a tile whose first row is there may leave out the last ones.
  bool const may_be_unwritten =
      is_a && is_inside(offset_of(0, 0)) && cta().shared.is_written(offset_of(0, 0));
  auto const visit = [&](int i, int j) {
    int64_t const offset = offset_of(i, j);
    if (!is_inside(offset)) {
      inside = false;
      lowest = offset;
      return;
    }
    lowest = std::min(lowest, offset);
    highest = std::max(highest, offset + kChunkBytes);
    cta().shared.begin_async_read(offset, SharedMemory::Reader::kMma, number, may_be_unwritten,
                                  who);
  };
  int const per_chunk = kChunkBytes / 2;
  if (mn_major) {
    for (int i = first_row / per_chunk; i < (first_row + rows) / per_chunk; ++i) {
      for (int k = 0; k < kMmaDepth; ++k) {
        visit(i, k);
      }
    }
  } else {
    for (int row = first_row; row < first_row + rows; ++row) {
      visit(row, 0);
      visit(row, 1);
    }
  }
  if (!inside) {
    findings_.add({.kind = "out_of_bounds",
                   .memory = "shared",
                   .offset = lowest,
                   .bytes = kChunkBytes,
                   .access = access,
                   .detail = "a descriptor names bytes past the end"});
    return;
  }
  check_tile(lowest, static_cast<int>(highest - lowest), access);
}

// The one that MMAs in flight write to already, or a new one.
std::shared_ptr<Accumulator> Emulator::accumulator_of(Warp& warp) {
  WarpgroupMma const& mma = *warp.lanes[0]->warpgroup_mma;
  for (MmaInFlight const& op : warp.mmas.in_flight) {
    if (op.accumulator->registers[0] == mma.d && op.accumulator->n == mma.n) {
      return op.accumulator;
    }
  }
  auto accumulator = std::make_shared<Accumulator>();
  accumulator->n = mma.n;
  for (int lane = 0; lane < kLanes; ++lane) {
    accumulator->registers[lane] = warp.lanes[lane]->warpgroup_mma->d;
  }
  emulator::take_registers(*accumulator);
  return accumulator;
}

void Emulator::meet_mma_wait(Warp& warp) {
  ++counts_.wgmma_waits;
  auto const n_pending = static_cast<size_t>(warp.lanes[0]->n_pending);
  log(*warp.lanes[0], TimelineEvent::kMmaWait, static_cast<int64_t>(n_pending));
  while (warp.mmas.groups.size() > n_pending) {
    complete_group(warp);
  }
}

// The oldest.
void Emulator::complete_group(Warp& warp) {
  WarpMmas& mmas = warp.mmas;
  size_t const n = mmas.groups.front();
  mmas.groups.pop_front();
  SharedBytes const shared{cta().shared.data(0), cta().shared.size()};
  for (size_t i = 0; i < n; ++i) {
    MmaInFlight const op = mmas.in_flight.front();
    mmas.in_flight.pop_front();
    multiply(op, warp.index() % kWarpgroupWarps, shared);
    if (--op.accumulator->n_in_flight == 0) {
      give_registers(*op.accumulator);
    }
    warp.known.mmas[warp.index()] = op.number;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    RegisterWatch& watch = warp.lanes[lane]->watch;
    auto const in_flight = [&](RegisterWatch::Range const& range) {
      return std::any_of(mmas.in_flight.begin(), mmas.in_flight.end(), [&](MmaInFlight const& op) {
        auto const* const a = reinterpret_cast<std::byte const*>(op.a[lane]);
        auto const* const d = reinterpret_cast<std::byte const*>(op.accumulator->registers[lane]);
        return range.accumulator ? range.begin == d : range.begin <= a && a < range.end;
      });
    };
    auto* const end = std::remove_if(watch.ranges, watch.ranges + watch.n_ranges,
                                     [&](auto const& range) { return !in_flight(range); });
    watch.n_ranges = static_cast<int>(end - watch.ranges);
  }
}

// When the CTA ends.
void Emulator::end_mmas(Warp& warp) {
  auto const& issued = issued_[warp.index() / kWarpgroupWarps];
  Thread const& first = *warp.lanes[0];
  if (!warp.mmas.in_flight.empty()) {
    MmaInFlight const& op = warp.mmas.in_flight.front();
    findings_.add({.kind = "mma_never_awaited",
                   .access = {op.site, first.index, "wgmma"},
                   .detail = warp.mmas.n_uncommitted > 0 ? "it was not committed" : ""});
  }
  if (warp.mmas.n_issued != issued.size()) {
    findings_.add({.kind = "divergence",
                   .access = {first.site, first.index, "wgmma"},
                   .other = {first.site, issued[0].second, "wgmma"},
                   .detail = "a warp issued " + std::to_string(warp.mmas.n_issued) +
                             " MMAs and another of its warpgroup " +
                             std::to_string(issued.size())});
  }
}

}  // namespace pyflash::emulator
