// Clusters: CTAs that run together, their barrier, and reads of each other's shared memory.
#include <algorithm>
#include <cstring>

#include "cute_kernels/emulator/emulator.h"

namespace pyflash::emulator {

Cta::Cta(EmulatedKernel const& kernel, int rank, int cluster, Findings& findings)
    : rank(rank),
      shared(kernel.smem_bytes, kernel.access_bytes, rank * kernel.n_threads, kernel.n_threads,
             findings),
      mbarriers(kernel.rings, rank * (kMaxMbarriers / cluster), kMaxMbarriers / cluster),
      remote_reads(cluster * kernel.n_threads / kLanes) {}

void Cta::reset(uint64_t unwritten) {
  shared.reset(unwritten);
  mbarriers.reset();
  named = {};
  free_registers = 0;
  std::fill(remote_reads.begin(), remote_reads.end(), RemoteRead{});
}

int Emulator::cluster_size() { return launch_->cluster; }
int Emulator::cluster_rank() { return cta().rank; }

void Emulator::cluster_sync() { stop(Stop::kCluster); }

bool Emulator::meet_cluster(Warp& warp) {
  ++counts_.cluster_syncs;
  ++warp.n_syncs;
  cluster_barrier_.clock.join(release(warp));
  cluster_barrier_.waiting.push_back(&warp);
  return finish_cluster_barrier();
}

// After an arrival, or the end of a warp. False: some that have not ended have not arrived.
bool Emulator::finish_cluster_barrier() {
  auto const ended = std::count_if(warps().begin(), warps().end(),
                                   [](Warp const& warp) { return warp.stop == Stop::kEnd; });
  ClusterBarrier& barrier = cluster_barrier_;
  if (barrier.waiting.empty() || ended + barrier.waiting.size() < warps().size()) {
    return false;
  }
  for (Warp* waiting : barrier.waiting) {
    waiting->known.join(barrier.clock);
    resume(*waiting);
  }
  barrier = {};
  return true;
}

void Emulator::load_from_rank(void const* address, int rank, void* value, int bytes) {
  Thread const& thread = current();
  Warp const& warp = current_warp();
  Access const access{thread.site, thread.index, "read"};
  ++counts_.cluster_loads;
  std::memset(value, std::to_integer<int>(kPoison), bytes);
  if (!cta().shared.contains(address)) {
    fail("a read by rank of an address that is not in shared memory");
  }
  int64_t const offset = cta().shared.offset(address);
  if (rank < 0 || rank >= launch_->cluster) {
    findings_.add({.kind = "out_of_bounds",
                   .memory = kSharedOfAnother,
                   .offset = offset,
                   .bytes = bytes,
                   .access = access,
                   .detail = "rank " + std::to_string(rank) + " of a cluster of " +
                             std::to_string(launch_->cluster)});
    return;
  }
  Cta& other = ctas_[rank];
  if (&other != &cta()) {
    counts_.cluster_bytes += bytes;
    other.remote_reads[warp.index()] = {warp.epoch, offset, bytes, access};
  }
  if (auto const* const from = other.shared.read(offset, bytes, accessor(thread, thread.site))) {
    std::memcpy(value, from, bytes);
  }
}

// A CTA's memory is its own as long as one of its warps runs: one of them has to know of every read by others.
void Emulator::end_remote_reads(Cta const& cta) {
  auto const first = warps().begin() + cta.rank * (kernel_.n_threads / kLanes);
  auto const last = first + kernel_.n_threads / kLanes;
  for (size_t reader = 0; reader < cta.remote_reads.size(); ++reader) {
    RemoteRead const& read = cta.remote_reads[reader];
    bool const known = std::any_of(
        first, last, [&](Warp const& warp) { return read.epoch <= warp.known.warps[reader]; });
    if (!known) {
      findings_.add({.kind = "cta_ended",
                     .memory = kSharedOfAnother,
                     .offset = read.offset,
                     .bytes = read.bytes,
                     .access = read.access,
                     .detail = "rank " + std::to_string(cta.rank) + " does not wait for it"});
    }
  }
}

}  // namespace pyflash::emulator
