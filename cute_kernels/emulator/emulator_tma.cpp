// Boxes of TMA. A load is issued by one thread, and lands when nothing else can go on, or at any time where the order is
// random; a store reads shared memory when its thread waits for that, and not a moment sooner.
#include <algorithm>
#include <cstring>

#include "cute_kernels/emulator/emulator.h"
#include "cute_kernels/tagged.h"

namespace pyflash::emulator {

namespace {

constexpr int kBoxAlignment = 128;  // in shared memory
constexpr int kSectorBytes = 32;

int64_t n_rows(MapDescription const& map) {
  int64_t n = 1;
  for (uint32_t dim = 1; dim < map.rank; ++dim) {
    n *= map.box[dim];
  }
  return n;
}

// Bytes of global memory as a box of one row of floats.
MapDescription contiguous(void const* global, int bytes) {
  constexpr int kFloatBytes = sizeof(float);
  MapDescription map{.base = reinterpret_cast<uintptr_t>(global),
                     .rank = 1,
                     .element_bytes = kFloatBytes,
                     .swizzle_bytes = kChunkBytes};
  map.extents[0] = bytes / kFloatBytes;
  map.box[0] = static_cast<uint16_t>(bytes / kFloatBytes);
  return map;
}

int row_bytes(MapDescription const& map) { return map.box[0] * map.element_bytes; }

// Coordinates of a row of the box.
std::array<int64_t, kMaxMapRank> coords_of(TmaBox const& box, int64_t row) {
  std::array<int64_t, kMaxMapRank> at{box.coords[0]};
  for (uint32_t dim = 1; dim < box.map.rank; ++dim) {
    at[dim] = box.coords[dim] + row % box.map.box[dim];
    row /= box.map.box[dim];
  }
  return at;
}

// Calls visit(byte of the row, offset in shared memory) for each chunk of a row.
template <class Visit>
void for_each_chunk(TmaBox const& box, int64_t row, Visit&& visit) {
  int const bytes = row_bytes(box.map);
  uint32_t const chunks = box.map.swizzle_bytes / kChunkBytes;
  for (int at = 0; at < bytes; at += kChunkBytes) {
    uint32_t const address = box.smem_address + static_cast<uint32_t>(row * bytes + at);
    uint32_t const swizzled = address ^ ((address >> 7) & (chunks - 1)) << 4;
    visit(at, int64_t{swizzled} - kSharedBase);
  }
}

}  // namespace

// The box of a call by the thread that runs; a finding where it does not fit into shared memory.
TmaBox Emulator::box_of(MapDescription const& map, void const* smem, char const* what) {
  Thread const& thread = current();
  TmaBox box{.map = map,
             .coords = {},
             .rank = cta().rank,
             .smem_address = shared_address(smem),
             .bytes = static_cast<int>(n_rows(map)) * row_bytes(map),
             .inside = true,
             .access = {thread.site, thread.index, what}};
  check_previous_kernel(box.access);
  int64_t const offset = cta().shared.contains(smem) ? cta().shared.offset(smem) : -1;
  int const alignment = map.rank == 1 ? kChunkBytes : kBoxAlignment;
  Finding finding{
      .kind = "", .memory = "shared", .offset = offset, .bytes = box.bytes, .access = box.access};
  if (offset < 0 || offset + box.bytes > cta().shared.size()) {
    finding.kind = "out_of_bounds";
    finding.detail = "a box overruns shared memory";
  } else if (offset % alignment != 0) {
    finding.kind = "misaligned";
  } else {
    check_tile(offset, box.bytes, box.access);
    return box;
  }
  findings_.add(finding);
  box.inside = false;
  return box;
}

TmaBox Emulator::box_of(void const* map, void const* smem, int const* coords, int n_coords,
                        char const* what) {
  MapDescription const* const description = description_of(map);
  if (description == nullptr || static_cast<int>(description->rank) != n_coords) {
    fail("TMA by a tensor map that was not encoded, or is of another rank");
  }
  if (description->swizzle_bytes > kChunkBytes &&
      row_bytes(*description) != description->swizzle_bytes) {
    fail("a box of TMA with rows that are shorter than its swizzle");
  }
  TmaBox box = box_of(*description, smem, what);
  std::copy(coords, coords + n_coords, box.coords.begin());
  return box;
}

void Emulator::tma_load(void const* map, void* barrier, void* smem, int const* coords,
                        int n_coords) {
  load(box_of(map, smem, coords, n_coords, "TMA load"), barrier, smem);
}

void Emulator::bulk_load(void const* global, void* barrier, void* smem, int bytes) {
  load(box_of(contiguous(global, bytes), smem, "bulk load"), barrier, smem);
}

void Emulator::load(TmaBox const& box, void* barrier, void* smem) {
  Thread const& thread = current();
  Mbarrier& mbarrier = mbarrier_at(barrier, box.access.what);
  check_visible(mbarrier, current_warp(), box.access, true);
  if (box.inside) {
    cta().shared.begin_tma_write(cta().shared.offset(smem), box.bytes, mbarrier.index,
                                 mbarrier.phase, accessor(thread, thread.site));
  }
  mbarrier.issued += box.bytes;
  ++counts_.tma_boxes;
  counts_.tma_bytes += box.bytes;
  loads_.push_back({box, &mbarrier});
  log(thread, TimelineEvent::kLoad, mbarrier.index, mbarrier.phase, box.bytes);
}

// The oldest first, or the newest, or any.
void Emulator::do_work() {
  size_t const i = order() == Order::kAscending    ? 0
                   : order() == Order::kDescending ? n_work() - 1
                                                   : random() % n_work();
  TmaLoad const load = loads_[i];
  loads_.erase(loads_.begin() + static_cast<int64_t>(i));
  land(load.box);
  load.barrier->tx -= load.box.bytes;
  finish_phase(*load.barrier);
}

Emulator::BoxRow Emulator::row_of(TmaBox const& box, int64_t row, int64_t writer,
                                  Traffic& traffic) {
  MapDescription const& map = box.map;
  auto const at = coords_of(box, row);
  int64_t const first = std::max<int64_t>(at[0], 0);
  int64_t const end = std::min<int64_t>(at[0] + map.box[0], map.extents[0]);
  bool outside = first >= end;
  uint64_t address = map.base + first * map.element_bytes;
  for (uint32_t dim = 1; dim < map.rank; ++dim) {
    outside = outside || at[dim] < 0 || at[dim] >= map.extents[dim];
    address += at[dim] * map.strides[dim - 1];
  }
  if (outside) {
    return {};
  }
  BoxRow found{.first = static_cast<int>((first - at[0]) * map.element_bytes),
               .bytes = static_cast<int>((end - first) * map.element_bytes)};
  traffic.bytes += found.bytes;
  traffic.sectors +=
      static_cast<int64_t>((address + found.bytes - 1) / kSectorBytes - address / kSectorBytes + 1);
  traffic.ideal_sectors += (found.bytes + kSectorBytes - 1) / kSectorBytes;
  auto const* const pointer = reinterpret_cast<void const*>(address);
  if (global_.contains(pointer)) {
    found.data =
        global_.translate(pointer, found.bytes, kChunkBytes, writer, box.access, findings_);
  } else {
    findings_.add({.kind = "unhooked_access",
                   .access = box.access,
                   .detail = "to an address that is in no tensor"});
  }
  return found;
}

// The bytes of the tensor, zeros outside the map's extents.
void Emulator::land(TmaBox const& box) {
  std::vector<std::byte> bytes(row_bytes(box.map));
  Traffic& traffic = traffic_.at(box.access.site, Path::kGlobalLoad);
  ++traffic.instructions;
  for (int64_t row = 0; row < n_rows(box.map); ++row) {
    BoxRow const source = row_of(box, row, -1, traffic);
    std::fill(bytes.begin(), bytes.end(), std::byte{});
    if (source.data != nullptr) {
      std::memcpy(&bytes[source.first], source.data, source.bytes);
    } else if (source.bytes > 0) {
      std::memset(&bytes[source.first], std::to_integer<int>(kPoison), source.bytes);
    }
    if (box.inside) {
      for_each_chunk(box, row, [&](int at, int64_t offset) {
        auto* const to = ctas_[box.rank].shared.end_tma_write(offset, kChunkBytes);
        std::memcpy(to, &bytes[at], kChunkBytes);
      });
    }
  }
}

void Emulator::tma_store(void const* map, void const* smem, int const* coords, int n_coords) {
  begin_store(box_of(map, smem, coords, n_coords, "TMA store"));
}

void Emulator::bulk_store(void const* smem, void* global, int bytes) {
  TmaBox const box = box_of(contiguous(global, bytes), smem, "bulk store");
  begin_store(box);
  current().unwritten = box.access;
}

void Emulator::bulk_reduce_add(void const* smem, void* global, int bytes) {
  TmaBox box = box_of(contiguous(global, bytes), smem, "bulk reduction");
  box.adds = true;
  begin_store(box);
  current().unwritten = box.access;
}

void Emulator::begin_store(TmaBox const& box) {
  Thread& thread = current();
  Warp& warp = current_warp();
  ++warp.n_stores;
  ++counts_.tma_stores;
  counts_.tma_stored_bytes += box.bytes;
  for (int64_t row = 0; box.inside && row < n_rows(box.map); ++row) {
    for_each_chunk(box, row, [&](int, int64_t offset) {
      cta().shared.begin_async_read(offset, SharedMemory::Reader::kTmaStore, warp.n_stores, false,
                                    accessor(thread, thread.site));
    });
  }
  thread.stores.push_back(box);
}

void Emulator::tma_store_commit() {
  Thread& thread = current();
  size_t committed = 0;
  for (size_t n : thread.group_stores) {
    committed += n;
  }
  thread.group_stores.push_back(thread.stores.size() - committed);
}

// NOTE: as if one lane of a warp issued all of its stores.
void Emulator::tma_store_wait(int n_pending) {
  Thread& thread = current();
  Warp& warp = current_warp();
  int64_t const writer = first_cta_ * kernel_.n_threads + thread.index;
  while (thread.group_stores.size() > static_cast<size_t>(n_pending)) {
    size_t const n = thread.group_stores.front();
    thread.group_stores.erase(thread.group_stores.begin());
    for (size_t i = 0; i < n; ++i) {
      store(thread.stores[i], writer);
    }
    thread.stores.erase(thread.stores.begin(), thread.stores.begin() + static_cast<int64_t>(n));
  }
  warp.known.stores[warp.index()] = warp.n_stores - static_cast<uint32_t>(thread.stores.size());
}

void Emulator::tma_store_wait_written() {
  tma_store_wait(0);
  current().unwritten = {};
}

void Emulator::store_tagged(void* address, void const* value) {
  constexpr int kBytes = sizeof(device::Tagged);
  Thread const& thread = current();
  Access const access{thread.site, thread.index, "store of tagged numbers"};
  count_traffic(Path::kGlobalStore, address, kBytes);
  auto* const to = translate(address, kBytes, kBytes, GlobalMemory::kReducer, access);
  if (to == nullptr) {
    return;
  }
  std::memcpy(to, value, kBytes);
  bool const is_stored = static_cast<device::Tagged const*>(value)->tag != 0;
  if (is_stored && !tagged_.emplace(address, access).second) {
    findings_.add({.kind = "written_twice",
                   .memory = global_.name_at(address),
                   .access = access,
                   .other = tagged_.at(address)});
  } else if (!is_stored) {
    tagged_.erase(address);
  }
}

void Emulator::load_when_tagged(void const* address, uint64_t tag, void* value) {
  constexpr int kBytes = sizeof(device::Tagged);
  Thread const& thread = current();
  Access const access{thread.site, thread.index, "read of tagged numbers"};
  count_traffic(Path::kGlobalLoad, address, kBytes);
  auto const* const from = translate(address, kBytes, kBytes, -1, access);
  if (from == nullptr) {
    return;
  }
  std::memcpy(value, from, kBytes);
  if (static_cast<device::Tagged const*>(value)->tag != tag) {
    findings_.add({.kind = "deadlock",
                   .memory = global_.name_at(address),
                   .access = access,
                   .detail = "a CTA waits for numbers that no CTA before it stored"});
    abort();
  }
}

// What lies outside the map's extents is left out.
void Emulator::store(TmaBox const& box, int64_t writer) {
  std::vector<std::byte> bytes(row_bytes(box.map));
  Traffic& traffic = traffic_.at(box.access.site, Path::kGlobalStore);
  ++traffic.instructions;
  for (int64_t row = 0; box.inside && row < n_rows(box.map); ++row) {
    for_each_chunk(box, row, [&](int at, int64_t offset) {
      std::memcpy(&bytes[at], cta().shared.data(offset), kChunkBytes);
    });
    BoxRow const to = row_of(box, row, box.adds ? GlobalMemory::kReducer : writer, traffic);
    if (to.data != nullptr && box.adds) {
      add_floats(to.data, &bytes[to.first], to.bytes);
    } else if (to.data != nullptr) {
      std::memcpy(to.data, &bytes[to.first], to.bytes);
    }
  }
}

}  // namespace pyflash::emulator
