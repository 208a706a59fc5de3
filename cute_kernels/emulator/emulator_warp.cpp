// What the lanes of a warp do together.
#include <algorithm>
#include <cstring>

#include "cute_kernels/emulator/emulator.h"
#include "cute_kernels/emulator/tensor_core.h"

namespace pyflash::emulator {

bool Emulator::meet(Warp& warp) {
  flush_counts(warp);
  Thread const& first = *warp.lanes[0];
  switch (first.stop) {
    case Stop::kMma:
      meet_mma(warp);
      return true;
    case Stop::kLdmatrix:
      meet_ldmatrix(warp);
      return true;
    case Stop::kStmatrix:
      meet_stmatrix(warp);
      return true;
    case Stop::kShuffle:
      meet_shuffle(warp);
      return true;
    case Stop::kSyncWarp:
      ++counts_.warp_syncs;
      ++warp.n_syncs;
      return true;
    case Stop::kElect:
      for (Thread* lane : warp.lanes) {
        lane->vote = lane == warp.lanes[0];
      }
      return true;
    case Stop::kAny:
      meet_any(warp);
      return true;
    case Stop::kSyncThreads:
      return meet_barrier(warp, 0, kernel_.n_threads, true);
    case Stop::kNamedBarrier:
      ++(first.barrier.waits ? counts_.named_syncs : counts_.named_arrivals);
      return meet_barrier(warp, first.barrier.id, first.barrier.n_threads, first.barrier.waits);
    case Stop::kCluster:
      return meet_cluster(warp);
    case Stop::kRegisters:
      return meet_registers(warp);
    case Stop::kWarpgroupMma:
      meet_warpgroup_mma(warp);
      return true;
    case Stop::kMmaFence:
      ++counts_.wgmma_fences;
      for (Thread* lane : warp.lanes) {
        ++lane->watch.n_fences;
      }
      return true;
    case Stop::kMmaCommit:
      ++counts_.wgmma_commits;
      log(first, TimelineEvent::kCommit);
      warp.mmas.groups.push_back(warp.mmas.n_uncommitted);
      warp.mmas.n_uncommitted = 0;
      return true;
    case Stop::kMmaWait:
      meet_mma_wait(warp);
      return true;
    case Stop::kEnd:
      finish_cluster_barrier();  // of those that have not ended
      return true;
    case Stop::kMbarrier:
    case Stop::kNone:
      return true;
  }
  return true;
}

void Emulator::meet_any(Warp& warp) {
  bool const any = std::any_of(warp.lanes.begin(), warp.lanes.end(),
                               [](Thread const* lane) { return lane->vote; });
  for (Thread* lane : warp.lanes) {
    lane->vote = any;
  }
}

void Emulator::meet_mma(Warp& warp) {
  ++counts_.mma;
  std::array<MmaRegisters*, kLanes> lanes;
  for (int lane = 0; lane < kLanes; ++lane) {
    lanes[lane] = warp.lanes[lane]->mma;
  }
  mma_m16n8k16(lanes, mma_dtype_);
}

void Emulator::meet_ldmatrix(Warp& warp) {
  ++counts_.ldmatrix;
  auto const& first = *warp.lanes[0];
  int const n_matrices = first.ldmatrix.n_matrices;
  int const n_rows = 8 * n_matrices;
  std::array<MatrixRow, kLanes> rows;
  Request request;
  for (int lane = 0; lane < n_rows; ++lane) {
    Thread const& thread = *warp.lanes[lane];
    void const* const address = thread.ldmatrix.row;
    std::byte const* row = nullptr;
    if (cta().shared.contains(address)) {
      row = cta().shared.read(cta().shared.offset(address), sizeof(MatrixRow),
                              accessor(thread, thread.site));
    } else {
      findings_.add({.kind = "out_of_bounds",
                     .memory = "shared",
                     .access = {thread.site, thread.index, "read"},
                     .detail = "ldmatrix from an address that is not in shared memory"});
    }
    if (row != nullptr) {
      std::memcpy(&rows[lane], row, sizeof(MatrixRow));
    } else {
      std::memset(&rows[lane], std::to_integer<int>(kPoison), sizeof(MatrixRow));
    }
    request.lanes |= uint32_t{1} << lane;
    request.addresses[lane] = reinterpret_cast<uint64_t>(address);
  }
  traffic_.add_matrices(first.site, Path::kSharedLoad, request, sizeof(MatrixRow));
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < n_matrices; ++i) {
      warp.lanes[lane]->ldmatrix.registers[i] =
          ldmatrix_register(&rows[8 * i], lane, first.ldmatrix.transposed);
    }
  }
}

// Lane l has columns 2 (l % 4) and the next of row l / 4 of matrix i; lanes 8 i and on have the addresses of its rows.
void Emulator::meet_stmatrix(Warp& warp) {
  ++counts_.stmatrix;
  Thread const& first = *warp.lanes[0];
  Request request{.lanes = ~uint32_t{0}, .addresses = {}};
  for (int lane = 0; lane < kLanes; ++lane) {
    Thread const& thread = *warp.lanes[lane];
    void* const address = thread.stmatrix.row;
    request.addresses[lane] = reinterpret_cast<uint64_t>(address);
    std::array<uint32_t, 4> row;
    for (int pair = 0; pair < 4; ++pair) {
      row[pair] = warp.lanes[lane % 8 * 4 + pair]->stmatrix.words[lane / 8];
    }
    if (!cta().shared.contains(address)) {
      findings_.add({.kind = "out_of_bounds",
                     .memory = "shared",
                     .access = {thread.site, thread.index, "write"},
                     .detail = "stmatrix to an address that is not in shared memory"});
      continue;
    }
    int64_t const offset = cta().shared.offset(address);
    if (auto* to =
            cta().shared.write(offset, sizeof row, row.data(), accessor(thread, thread.site))) {
      std::memcpy(to, row.data(), sizeof row);
    }
  }
  traffic_.add_matrices(first.site, Path::kSharedStore, request, sizeof(std::array<uint32_t, 4>));
}

void Emulator::meet_shuffle(Warp& warp) {
  ++counts_.shuffles;
  std::array<float, kLanes> values;
  for (int lane = 0; lane < kLanes; ++lane) {
    values[lane] = warp.lanes[lane]->shuffle.value;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    auto& shuffle = warp.lanes[lane]->shuffle;
    shuffle.value = values[(lane ^ shuffle.lane_mask) % kLanes];
  }
}

}  // namespace pyflash::emulator
