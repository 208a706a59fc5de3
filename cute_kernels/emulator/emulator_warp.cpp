// What the lanes of a warp do together.
#include <cstring>

#include "cute_kernels/emulator/emulator.h"
#include "cute_kernels/emulator/tensor_core.h"

namespace pyflash::emulator {

void Emulator::meet(Warp& warp) {
  warp.traffic.flush(traffic_);
  switch (warp.lanes[0]->stop) {
    case Stop::kMma:
      return meet_mma(warp);
    case Stop::kLdmatrix:
      return meet_ldmatrix(warp);
    case Stop::kShuffle:
      return meet_shuffle(warp);
    case Stop::kSyncWarp:
      ++counts_.warp_syncs;
      ++warp.n_syncs;
      return;
    case Stop::kSyncThreads:
    case Stop::kEnd:
    case Stop::kNone:
      return;
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
    if (shared_.contains(address)) {
      row = shared_.read(shared_.offset(address), sizeof(MatrixRow), accessor(thread, thread.site));
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
  traffic_.add(first.site, Path::kSharedLoad, request, sizeof(MatrixRow));
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < n_matrices; ++i) {
      warp.lanes[lane]->ldmatrix.registers[i] =
          ldmatrix_register(&rows[8 * i], lane, first.ldmatrix.transposed);
    }
  }
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
