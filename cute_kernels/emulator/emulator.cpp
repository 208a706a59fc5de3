#include "cute_kernels/emulator/emulator.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "cute_kernels/sites.h"

namespace pyflash::emulator {

namespace {

constexpr auto kNSites = static_cast<int>(std::size(device::kSiteNames));
constexpr int kMaxCopyBytes = 16;
constexpr std::array<std::byte, kMaxCopyBytes> kZeros{};
constexpr auto kPoisoned = [] {
  std::array<std::byte, kMaxCopyBytes> bytes;
  bytes.fill(kPoison);
  return bytes;
}();

Emulator* running = nullptr;

// Four 16-bit floats, of 2 at least and finite in both types.
uint64_t finite_halves(uint64_t bits) { return (bits & 0x87ff87ff87ff87ffu) | 0x4000400040004000u; }

}  // namespace

Emulator::Emulator(EmulatedKernel const& kernel, Order order, uint64_t seed)
    : Scheduler(order, seed, kNSites), kernel_(kernel), traffic_(kNSites + 1) {}

bool Emulator::run_cluster(Launch const& launch, int64_t first) {
  launch_ = &launch;
  first_cta_ = findings_.cta = first;
  begin_cluster(launch.cluster);
  kernel_.attach(this);
  running = this;
  bool ended;
  {
    FaultsGoTo const faults(*this);
    ended = run_threads(kernel_.n_threads * launch.cluster, kernel_.watches_registers, thread_main);
  }
  running = nullptr;
  kernel_.attach(nullptr);
  for (Warp& warp : warps()) {
    flush_counts(warp);
  }
  if (ended) {
    end_cluster();
  }
  return ended;
}

void Emulator::finish() {
  global_.check_written(findings_);
  if (!tagged_.empty()) {
    auto const& [address, access] = *tagged_.begin();
    findings_.add({.kind = "tag_left",
                   .memory = global_.name_at(address),
                   .access = access,
                   .detail = std::to_string(tagged_.size()) + " places, this the first"});
  }
}

void Emulator::begin_cluster(int size) {
  turns_.begin();
  int const n_warps = kernel_.n_threads / kLanes;
  timeline_.set_on(kernel_.rings.size > 0 && timeline_.events().empty(), n_warps);
  for (int rank = static_cast<int>(ctas_.size()); rank < size; ++rank) {
    ctas_.emplace_back(kernel_, rank, size, findings_);
  }
  for (Cta& cta : ctas_) {
    // In a random order unwritten memory holds numbers, because a NaN wins no comparison.
    cta.reset(order() == Order::kRandom ? finite_halves(random()) : kPoisonedWord);
  }
  loads_.clear();
  cluster_barrier_ = {};
  issued_.assign(size * n_warps / kWarpgroupWarps + 1, {});
}

void Emulator::end_cluster() {
  if (mbarrier_names_.empty()) {
    for (Mbarrier const& barrier : ctas_[0].mbarriers.all()) {
      mbarrier_names_.push_back(barrier.name);
    }
  }
  bool const is_last = first_cta_ + launch_->cluster >= launch_->n_ctas;
  if (is_last && launch_->runs_beside && !has_waited_for_previous_kernel_) {
    findings_.add({.kind = "ended_before_previous_kernel"});
  }
  for (Cta& cta : ctas_) {
    counts_.barriers += cta.named[0].n_completed;
    end_barriers(cta);
    end_remote_reads(cta);
  }
  for (Warp& warp : warps()) {
    end_mmas(warp);
  }
  for (Thread const& thread : threads()) {
    for (AsyncCopy const& copy : thread.copies) {
      findings_.add({.kind = "copy_never_awaited",
                     .memory = "shared",
                     .offset = copy.offset,
                     .bytes = copy.bytes,
                     .access = {copy.site, thread.index, "cp.async"}});
    }
    for (TmaBox const& box : thread.stores) {
      findings_.add({.kind = "copy_never_awaited",
                     .memory = "shared",
                     .offset = int64_t{box.smem_address} - kSharedBase,
                     .bytes = box.bytes,
                     .access = box.access});
    }
  }
}

void Emulator::thread_main() {
  running->kernel_.run_thread(running->launch_->params.get());
  running->stop(Stop::kEnd);
}

Accessor Emulator::accessor(Thread const& thread, int site) {
  Warp const& warp = warps()[thread.index / kLanes];
  return {thread.index, site, warp.epoch, warp.n_syncs, &warp.known};
}

void Emulator::count_traffic(Path path, void const* address, int bytes) {
  Thread const& thread = current();
  current_warp().traffic.add(thread.site, path, thread.index % kLanes, address, bytes);
}

void Emulator::leave_out() {
  Thread const& thread = current();
  current_warp().traffic.leave_out(thread.site, thread.index % kLanes);
}

// At a point that all lanes have reached: the n-th of each lane since the last one are one instruction.
void Emulator::flush_counts(Warp& warp) {
  warp.traffic.flush(traffic_);
  if (warp.has_exponentials) {
    counts_.exponential_instructions +=
        *std::max_element(warp.exponentials.begin(), warp.exponentials.end());
    warp.exponentials = {};
    warp.has_exponentials = false;
  }
}

// Machine: the calls of the thread that runs

void Emulator::at(int site) { current().site = site; }
int Emulator::thread_idx() { return current().index % kernel_.n_threads; }
int Emulator::block_idx() { return static_cast<int>(first_cta_) + cta().rank; }
int Emulator::grid_size() { return static_cast<int>(launch_->n_ctas); }
void* Emulator::dynamic_smem() { return cta().shared.address(); }

void Emulator::sync_threads() { stop(Stop::kSyncThreads); }
void Emulator::sync_warp() { stop(Stop::kSyncWarp); }

float Emulator::shfl_xor(float value, int lane_mask) {
  Thread& thread = current();
  thread.shuffle = {value, lane_mask};
  stop(Stop::kShuffle);
  return thread.shuffle.value;
}

void Emulator::copy(void const* source, void* destination, int bytes) {
  Thread const& thread = current();
  SharedMemory& shared = cta().shared;
  Access const access{thread.site, thread.index, "read"};
  auto const* from = static_cast<std::byte const*>(source);
  if (shared.contains(source)) {
    count_traffic(Path::kSharedLoad, source, bytes);
    from = shared.read(shared.offset(source), bytes, accessor(thread, thread.site));
  } else if (global_.contains(source)) {
    count_traffic(Path::kGlobalLoad, source, bytes);
    from = translate(source, bytes, bytes, -1, access);
  }
  auto* to = static_cast<std::byte*>(destination);
  if (shared.contains(destination)) {
    count_traffic(Path::kSharedStore, destination, bytes);
    to = shared.write(shared.offset(destination), bytes, from != nullptr ? from : kPoisoned.data(),
                      accessor(thread, thread.site));
  } else if (global_.contains(destination)) {
    count_traffic(Path::kGlobalStore, destination, bytes);
    int64_t const writer = first_cta_ * kernel_.n_threads + thread.index;
    to = translate(destination, bytes, bytes, writer, {thread.site, thread.index, "write"});
  }
  if (to != nullptr) {
    std::memcpy(to, from != nullptr ? from : kPoisoned.data(), bytes);
  }
}

std::byte* Emulator::translate(void const* address, int bytes, int alignment, int64_t writer,
                               Access const& access) {
  check_previous_kernel(access);
  return global_.translate(address, bytes, alignment, writer, access, findings_);
}

void Emulator::check_previous_kernel(Access const& access) {
  if (kernel_.starts_early && !launch_->runs_beside && !current().waited_for_previous_kernel) {
    findings_.add({.kind = "before_previous_kernel_ended", .access = access});
  }
}

void Emulator::wait_for_previous_kernel() {
  current().waited_for_previous_kernel = has_waited_for_previous_kernel_ = true;
}

void Emulator::async_copy(void const* source, void* destination, int bytes, bool valid) {
  Thread& thread = current();
  ++counts_.cp_async;
  std::byte const* from = kZeros.data();
  if (valid) {
    from = kPoisoned.data();
    Access const access{thread.site, thread.index, "cp.async"};
    if (!global_.contains(source)) {
      fail("cp.async from an address that is not in global memory");
    }
    count_traffic(Path::kGlobalLoad, source, bytes);
    if (auto const* read = translate(source, bytes, bytes, -1, access)) {
      from = read;
    }
  }
  begin_copy(thread, from, destination, bytes);
}

void Emulator::async_copy_captured(void const* source, void* destination, int bytes) {
  Thread& thread = current();
  ++counts_.cp_async;
  if (reinterpret_cast<uintptr_t>(source) % bytes != 0) {
    fail("cp.async from an address that is not aligned");
  }
  begin_copy(thread, static_cast<std::byte const*>(source), destination, bytes);
}

void Emulator::begin_copy(Thread& thread, std::byte const* from, void* destination, int bytes) {
  if (!cta().shared.contains(destination)) {
    fail("cp.async to an address that is not in shared memory");
  }
  count_traffic(Path::kSharedStore, destination, bytes);
  int64_t const offset = cta().shared.offset(destination);
  if (cta().shared.begin_async_write(offset, bytes, accessor(thread, thread.site))) {
    thread.copies.push_back({from, offset, bytes, thread.site});
  }
}

void Emulator::async_commit() {
  Thread& thread = current();
  ++counts_.cp_async_commits;
  size_t committed = 0;
  for (size_t n : thread.group_copies) {
    committed += n;
  }
  thread.group_copies.push_back(thread.copies.size() - committed);
}

// NOTE: copies that were not committed are not waited for; and none lands before it has to.
void Emulator::async_wait(int n_pending) {
  Thread& thread = current();
  ++counts_.cp_async_waits;
  auto& groups = thread.group_copies;
  while (groups.size() > static_cast<size_t>(n_pending)) {
    land(thread, groups.front());
    groups.erase(groups.begin());
  }
}

void Emulator::land(Thread& thread, size_t n_copies) {
  for (size_t i = 0; i < n_copies; ++i) {
    AsyncCopy const& copy = thread.copies[i];
    Accessor const who = accessor(thread, copy.site);
    std::memcpy(cta().shared.end_async_write(copy.offset, copy.bytes, who), copy.source,
                copy.bytes);
  }
  thread.copies.erase(thread.copies.begin(), thread.copies.begin() + n_copies);
}

void Emulator::ldmatrix(void const* row, uint32_t* registers, int n_matrices, bool transposed) {
  current().ldmatrix = {row, registers, n_matrices, transposed};
  stop(Stop::kLdmatrix);
}

void Emulator::mma(MmaRegisters& registers, DType dtype) {
  mma_dtype_ = dtype;
  current().mma = &registers;
  stop(Stop::kMma);
}

void Emulator::count_exponential() {
  ++counts_.exponentials;
  ++current_warp().exponentials[current().index % kLanes];
  current_warp().has_exponentials = true;
  if (current().index % kLanes == 0) {
    timeline_.add_exponential(current().index / kLanes);
  }
}
void Emulator::count_reciprocal() { ++counts_.reciprocals; }

void Emulator::fail(char const* what) {
  Thread const& thread = current();
  findings_.add({.kind = "unsupported", .access = {thread.site, thread.index, ""}, .detail = what});
  abort();
}

void Emulator::switched_to(Thread& thread) { watch = &thread.watch; }

void Emulator::log(Thread const& thread, TimelineEvent::Kind kind, int64_t a, int64_t b,
                   int64_t c) {
  if (thread.index % kLanes == 0) {
    timeline_.add({thread.index / kLanes, kind, thread.site, a, b, c});
  }
}

Clock Emulator::release(Warp& warp) {
  Clock clock = warp.known;
  clock.warps[warp.index()] = warp.epoch++;
  return clock;
}

void Emulator::diverged(Thread const& a, Thread const& b, std::string const& detail) {
  findings_.add({.kind = "divergence",
                 .access = {a.site, a.index, ""},
                 .other = {b.site, b.index, ""},
                 .detail = detail});
}

void Emulator::on_fault(void* address) {
  Thread const& thread = current();
  Finding finding{.kind = "unhooked_access",
                  .access = {thread.site, thread.index, "access"},
                  .detail = "past the device layer and the copy atoms"};
  if (cta().shared.contains(address)) {
    finding.memory = "shared";
    finding.offset = cta().shared.offset(address);
  } else if (global_.contains(address)) {
    finding.memory = global_.name_at(address);
  } else if (is_stack_guard(address)) {
    finding.kind = "unsupported";
    finding.detail = "the thread's stack overflowed";
  } else {
    finding.detail = "to an address that is in no tensor";
  }
  findings_.add(finding);
  abort();
}

}  // namespace pyflash::emulator
