// Boxes of TMA: issued by one thread, landed when nothing else can go on, or at any time where the order is random.
#include <cstring>

#include "cute_kernels/emulator/emulator.h"

namespace pyflash::emulator {

namespace {

constexpr int kBoxAlignment = 128;  // in shared memory
constexpr int kSectorBytes = 32;
constexpr int kChunkBytesOfTma = 16;

int64_t n_rows(MapDescription const& map) {
  int64_t n = 1;
  for (uint32_t dim = 1; dim < map.rank; ++dim) {
    n *= map.box[dim];
  }
  return n;
}

int row_bytes(MapDescription const& map) { return map.box[0] * map.element_bytes; }

// Coordinates of a row of the box.
std::array<int64_t, kMaxMapRank> coords_of(TmaLoad const& load, int64_t row) {
  std::array<int64_t, kMaxMapRank> at{load.coords[0]};
  for (uint32_t dim = 1; dim < load.map.rank; ++dim) {
    at[dim] = load.coords[dim] + row % load.map.box[dim];
    row /= load.map.box[dim];
  }
  return at;
}

}  // namespace

void Emulator::tma_load(void const* map, void* barrier, void* smem, int const* coords,
                        int n_coords) {
  Thread const& thread = current();
  MapDescription const* const description = description_of(map);
  if (description == nullptr || static_cast<int>(description->rank) != n_coords) {
    fail("a TMA load by a tensor map that was not encoded, or is of another rank");
  }
  if (description->swizzle_bytes > kChunkBytesOfTma &&
      row_bytes(*description) != description->swizzle_bytes) {
    fail("a box of TMA with rows that are shorter than its swizzle");
  }
  Mbarrier& mbarrier = mbarrier_at(barrier, "TMA load");
  TmaLoad load{.map = *description,
               .coords = {},
               .smem_address = shared_address(smem),
               .bytes = static_cast<int>(n_rows(*description)) * row_bytes(*description),
               .inside = true,
               .barrier = &mbarrier,
               .phase = mbarrier.phase,
               .access = {thread.site, thread.index, "TMA load"}};
  std::copy(coords, coords + n_coords, load.coords.begin());
  check_visible(mbarrier, current_warp(), load.access, true);
  int64_t const offset = shared_.contains(smem) ? shared_.offset(smem) : -1;
  Finding finding{
      .kind = "", .memory = "shared", .offset = offset, .bytes = load.bytes, .access = load.access};
  if (offset < 0 || offset + load.bytes > shared_.size()) {
    finding.kind = "out_of_bounds";
    finding.detail = "a box overruns shared memory";
  } else if (offset % kBoxAlignment != 0) {
    finding.kind = "misaligned";
  }
  if (*finding.kind != '\0') {
    load.inside = false;
    findings_.add(finding);
  } else {
    check_tile(offset, load.bytes, load.access);
    shared_.begin_tma_write(offset, load.bytes, mbarrier.index, mbarrier.phase,
                            accessor(thread, thread.site));
  }
  mbarrier.issued += load.bytes;
  ++counts_.tma_boxes;
  counts_.tma_bytes += load.bytes;
  loads_.push_back(load);
  log(thread, TimelineEvent::kLoad, mbarrier.index, mbarrier.phase, load.bytes);
}

// The oldest first, or the newest, or any.
void Emulator::do_work() {
  size_t const i = order() == Order::kAscending    ? 0
                   : order() == Order::kDescending ? loads_.size() - 1
                                                   : random() % loads_.size();
  TmaLoad const load = loads_[i];
  loads_.erase(loads_.begin() + static_cast<int64_t>(i));
  land(load);
  load.barrier->tx -= load.bytes;
  finish_phase(*load.barrier);
}

// The bytes of a row of the box as the tensor has them; zeros outside the map's extents.
void Emulator::read_row(TmaLoad const& load, int64_t row, std::byte* bytes, Traffic& traffic) {
  MapDescription const& map = load.map;
  auto const at = coords_of(load, row);
  std::memset(bytes, 0, row_bytes(map));
  int64_t const first = std::max<int64_t>(at[0], 0);
  int64_t const end = std::min<int64_t>(at[0] + map.box[0], map.extents[0]);
  bool outside = first >= end;
  uint64_t address = map.base + first * map.element_bytes;
  for (uint32_t dim = 1; dim < map.rank; ++dim) {
    outside = outside || at[dim] < 0 || at[dim] >= map.extents[dim];
    address += at[dim] * map.strides[dim - 1];
  }
  if (outside) {
    return;
  }
  auto const n_bytes = static_cast<int>((end - first) * map.element_bytes);
  auto const* const pointer = reinterpret_cast<void const*>(address);
  traffic.bytes += n_bytes;
  traffic.sectors +=
      static_cast<int64_t>((address + n_bytes - 1) / kSectorBytes - address / kSectorBytes + 1);
  traffic.ideal_sectors += (n_bytes + kSectorBytes - 1) / kSectorBytes;
  std::byte const* source = nullptr;
  if (global_.contains(pointer)) {
    source = global_.translate(pointer, n_bytes, kChunkBytesOfTma, -1, load.access, findings_);
  } else {
    findings_.add({.kind = "unhooked_access",
                   .access = load.access,
                   .detail = "to an address that is in no tensor"});
  }
  std::byte* const to = bytes + (first - at[0]) * map.element_bytes;
  if (source != nullptr) {
    std::memcpy(to, source, n_bytes);
  } else {
    std::memset(to, std::to_integer<int>(kPoison), n_bytes);
  }
}

void Emulator::land(TmaLoad const& load) {
  int const bytes = row_bytes(load.map);
  std::vector<std::byte> row(bytes);
  Traffic& traffic = traffic_.at(load.access.site, Path::kGlobalLoad);
  ++traffic.instructions;
  int64_t const n = n_rows(load.map);
  uint32_t const chunks = load.map.swizzle_bytes / kChunkBytesOfTma;
  for (int64_t i = 0; i < n; ++i) {
    read_row(load, i, row.data(), traffic);
    if (!load.inside) {
      continue;
    }
    for (int at = 0; at < bytes; at += kChunkBytesOfTma) {
      uint32_t const address = load.smem_address + static_cast<uint32_t>(i * bytes + at);
      uint32_t const swizzled = address ^ ((address >> 7) & (chunks - 1)) << 4;
      std::memcpy(shared_.end_tma_write(swizzled - kSharedBase, kChunkBytesOfTma), &row[at],
                  kChunkBytesOfTma);
    }
  }
}

}  // namespace pyflash::emulator
