// Runs an emulated kernel cluster by cluster (most are of one CTA) and keeps account of what its threads do.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cute_kernels/emulator/faults.h"
#include "cute_kernels/emulator/findings.h"
#include "cute_kernels/emulator/global_memory.h"
#include "cute_kernels/emulator/machine.h"
#include "cute_kernels/emulator/mbarrier.h"
#include "cute_kernels/emulator/scheduler.h"
#include "cute_kernels/emulator/shared_memory.h"
#include "cute_kernels/emulator/tensor_map.h"
#include "cute_kernels/emulator/timeline.h"
#include "cute_kernels/emulator/traffic.h"
#include "cute_kernels/emulator/turn_order.h"

namespace pyflash::emulator {

inline constexpr int kWarpgroupWarps = 4;

// How often each operation ran, in all CTAs.
struct Counts {
  int64_t mma = 0;  // of warps, as are the next three
  int64_t ldmatrix = 0;
  int64_t shuffles = 0;
  int64_t warp_syncs = 0;
  int64_t barriers = 0;  // of CTAs
  int64_t cp_async = 0;  // of threads, as are the next four
  int64_t cp_async_commits = 0;
  int64_t cp_async_waits = 0;
  int64_t exponentials = 0;
  int64_t reciprocals = 0;
  int64_t wgmma_ss = 0;  // of warpgroups, both operands in shared memory
  int64_t wgmma_rs = 0;  // A in registers
  int64_t wgmma_flops_ss = 0;
  int64_t wgmma_flops_rs = 0;
  int64_t wgmma_fences = 0;  // of warps, as are the next two
  int64_t wgmma_commits = 0;
  int64_t wgmma_waits = 0;
  int64_t tma_boxes = 0;
  int64_t tma_bytes = 0;  // into shared memory
  int64_t tma_stores = 0;
  int64_t tma_stored_bytes = 0;   // out of shared memory
  int64_t mbarrier_arrivals = 0;  // of threads, as are the next three
  int64_t mbarrier_expects = 0;   // that announce bytes
  int64_t mbarrier_waits = 0;
  int64_t proxy_fences = 0;
  int64_t named_syncs = 0;  // of warps, as is the next
  int64_t named_arrivals = 0;
  int64_t stmatrix = 0;
  int64_t cluster_syncs = 0;             // of warps
  int64_t cluster_loads = 0;             // of threads, from shared memory by rank
  int64_t cluster_bytes = 0;             // of these, those from other CTAs
  int64_t exponential_instructions = 0;  // of warps
};

// A named barrier of the CTA; 0 is that of sync_threads.
struct NamedBarrier {
  int n_expected = 0;  // threads; 0: none has come
  int n_arrived = 0;
  int n_completed = 0;  // how often
  Clock clock;          // of those who have arrived
  std::vector<Warp*> waiting;
  Access first;
};

// The barrier of all threads of a cluster that have not ended.
struct ClusterBarrier {
  Clock clock;  // of those who have arrived
  std::vector<Warp*> waiting;
};

// The last read of a CTA's shared memory by a warp of another CTA.
struct RemoteRead {
  uint32_t epoch = 0;  // of the warp; 0: there is none
  int64_t offset;
  int bytes;
  Access access;
};

// What each CTA of a cluster has of its own.
struct Cta {
  Cta(EmulatedKernel const& kernel, int rank, int cluster, Findings& findings);

  void reset(uint64_t unwritten);

  int rank;
  SharedMemory shared;
  Mbarriers mbarriers;
  std::array<NamedBarrier, 16> named;
  int free_registers = 0;
  std::vector<RemoteRead> remote_reads;  // by warp of the cluster
};

// A load of TMA that has not landed.
struct TmaLoad {
  TmaBox box;
  Mbarrier* barrier;
};

class Emulator final : public Machine, private Scheduler, private FaultHandler {
 public:
  Emulator(EmulatedKernel const& kernel, Order order, uint64_t seed);

  // Every tensor that params point to is added before the first CTA runs. Returns what the kernel takes for its address.
  uintptr_t add_tensor(GlobalTensor const& tensor) { return global_.add(tensor); }

  // CTAs add to the tensor of this name in turns. Before the first CTA runs.
  void expect_turns(std::string name) { sums_in_turns_ = std::move(name); }

  // From the CTA `first` on. False: it could not go on, and no other can be run.
  bool run_cluster(Launch const& launch, int64_t first);
  // After the last cluster.
  void finish();

  Findings const& findings() const { return findings_; }
  TrafficTable const& traffic() const { return traffic_; }
  Counts const& counts() const { return counts_; }
  // The time line of the first CTA.
  Timeline const& timeline() const { return timeline_; }
  EmulatedKernel const& kernel() const { return kernel_; }
  int n_ranks() const { return static_cast<int>(ctas_.size()); }
  std::vector<std::string> const& mbarrier_names() const { return mbarrier_names_; }

  // Machine
  void at(int site) override;
  void leave_out() override;
  int thread_idx() override;
  int block_idx() override;
  void* dynamic_smem() override;
  void sync_threads() override;
  void sync_warp() override;
  float shfl_xor(float value, int lane_mask) override;
  void copy(void const* source, void* destination, int bytes) override;
  void async_copy(void const* source, void* destination, int bytes, bool valid) override;
  void async_copy_captured(void const* source, void* destination, int bytes) override;
  void async_commit() override;
  void async_wait(int n_pending) override;
  void ldmatrix(void const* row, uint32_t* registers, int n_matrices, bool transposed) override;
  void mma(MmaRegisters& registers, DType dtype) override;
  void count_exponential() override;
  void count_reciprocal() override;
  int grid_size() override;
  int cluster_size() override;
  int cluster_rank() override;
  void wait_for_previous_kernel() override;
  bool elect_one() override;
  bool any_lane(bool value) override;
  void mbarrier_init(void* barrier, int n_arrivals) override;
  void fence_mbarrier_init() override;
  void mbarrier_arrive(void* barrier, int bytes) override;
  void mbarrier_wait(void* barrier, uint32_t parity) override;
  bool mbarrier_test(void* barrier, uint32_t parity) override;
  void named_barrier(int id, int n_threads, bool waits) override;
  void cluster_sync() override;
  void load_from_rank(void const* address, int rank, void* value, int bytes) override;
  void fence_async_proxy() override;
  void tma_load(void const* map, void* barrier, void* smem, int const* coords,
                int n_coords) override;
  void stmatrix(uint32_t const* words, void* row) override;
  void tma_store(void const* map, void const* smem, int const* coords, int n_coords) override;
  void bulk_load(void const* global, void* barrier, void* smem, int bytes) override;
  void bulk_store(void const* smem, void* global, int bytes) override;
  void bulk_reduce_add(void const* smem, void* global, int bytes) override;
  void reduce_add(void* global, void const* values, int bytes) override;
  float wait_until_at_most(float const* address, float bound) override;
  void store_release(float* address, float value) override;
  float add_release(float* address, float value, bool of_cta) override;
  void store_tagged(void* address, void const* value) override;
  void load_when_tagged(void const* address, uint64_t tag, void* value) override;
  void tma_store_commit() override;
  void tma_store_wait(int n_pending) override;
  void tma_store_wait_written() override;
  void warpgroup_mma(WarpgroupMma const& mma) override;
  void mma_fence() override;
  void mma_commit() override;
  void mma_wait(int n_pending) override;
  void set_registers(int n_registers, bool claim) override;
  uint32_t shared_address(void const* address) override;
  void register_touched(void const* address, int bytes, bool write) override;
  void fail(char const* what) override;

 private:
  static void thread_main();

  void begin_cluster(int size);
  void end_cluster();
  void end_barriers(Cta& cta);
  void end_remote_reads(Cta const& cta);
  // The CTA of the thread that runs, of any thread, of a warp.
  Cta& cta() { return cta_of(current()); }
  Cta& cta_of(Thread const& thread) {
    return launch_->cluster == 1 ? ctas_.front() : ctas_[thread.index / kernel_.n_threads];
  }
  Cta& cta_of(Warp const& warp) { return cta_of(*warp.lanes[0]); }
  Accessor accessor(Thread const& thread, int site);
  // Checks an access of the running thread to global memory.
  std::byte* translate(void const* address, int bytes, int alignment, int64_t writer,
                       Access const& access);
  void check_previous_kernel(Access const& access);
  void count_traffic(Path path, void const* address, int bytes);
  static void add_floats(std::byte* sums, std::byte const* terms, int bytes);
  void check_turn(void const* sums, Access const& access);
  int64_t cta_of_launch() { return first_cta_ + cta().rank; }
  void flush_counts(Warp& warp);
  void begin_copy(Thread& thread, std::byte const* from, void* destination, int bytes);
  void land(Thread& thread, size_t n_copies);

  // What the lanes of a warp do together.
  bool meet(Warp& warp) override;
  void meet_mma(Warp& warp);
  void meet_ldmatrix(Warp& warp);
  void meet_stmatrix(Warp& warp);
  void meet_shuffle(Warp& warp);
  void meet_any(Warp& warp);
  bool meet_barrier(Warp& warp, int id, int n_threads, bool waits);
  bool meet_cluster(Warp& warp);
  bool finish_cluster_barrier();
  bool meet_registers(Warp& warp);
  bool take_registers(Warp& warp, int n);

  // Warpgroup MMAs.
  void meet_warpgroup_mma(Warp& warp);
  void check_same_in_warpgroup(Warp& warp, WarpgroupMma const& mma);
  void check_fences(Warp& warp);
  void check_operand(Warp& warp, uint64_t descriptor, bool mn_major, bool is_a, int first_row,
                     int rows);
  void check_tile(int64_t offset, int bytes, Access const& access);
  static std::shared_ptr<Accumulator> accumulator_of(Warp& warp);
  static void watch_registers(Warp& warp);
  void meet_mma_wait(Warp& warp);
  void complete_group(Warp& warp);
  void end_mmas(Warp& warp);

  // mbarriers and TMA.
  Mbarrier& mbarrier_at(void* address, char const* what);
  void check_visible(Mbarrier const& barrier, Warp const& warp, Access const& access, bool async);
  void check_parity(Mbarrier const& barrier, uint32_t parity, Warp const& warp,
                    Access const& access);
  void check_ring(Mbarrier& barrier, Warp const& warp, Access const& access);
  void finish_phase(Mbarrier& barrier);
  // A row of a box in global memory; no data: none of it is inside the map's extents, or, with a finding, of a tensor.
  struct BoxRow {
    std::byte* data = nullptr;
    int first = 0;  // byte of the row that lies there
    int bytes = 0;  // inside the extents
  };
  TmaBox box_of(MapDescription const& map, void const* smem, char const* what);
  TmaBox box_of(void const* map, void const* smem, int const* coords, int n_coords,
                char const* what);
  void load(TmaBox const& box, void* barrier, void* smem);
  void begin_store(TmaBox const& box);
  BoxRow row_of(TmaBox const& box, int64_t row, int64_t writer, Traffic& traffic);
  void land(TmaBox const& box);
  void store(TmaBox const& box, int64_t writer);
  bool passes(Thread& thread) override;
  size_t n_work() const override { return loads_.size(); }
  void do_work() override;
  void deadlocked() override;
  std::string what_it_waits_for(Warp const& warp);
  std::string role_of(Warp const& warp) const;
  void switched_to(Thread& thread) override;

  // Logs an event of a lane; only the first lane of a warp counts, since the others do the same.
  void log(Thread const& thread, TimelineEvent::Kind kind, int64_t a = 0, int64_t b = 0,
           int64_t c = 0);

  // What the warp did so far becomes known to whom this clock goes.
  Clock release(Warp& warp);

  void diverged(Thread const& a, Thread const& b, std::string const& detail) override;
  void on_fault(void* address) override;

  EmulatedKernel const& kernel_;
  Launch const* launch_ = nullptr;
  bool has_waited_for_previous_kernel_ = false;  // some thread
  Findings findings_;
  GlobalMemory global_;
  TrafficTable traffic_;
  Counts counts_;
  DType mma_dtype_ = DType::FP16;
  int64_t first_cta_ = 0;  // of the cluster

  std::deque<Cta> ctas_;  // of the cluster, by rank
  ClusterBarrier cluster_barrier_;
  std::deque<TmaLoad> loads_;  // in flight, oldest first
  // By warpgroup, the instructions that its first warp to come there issued, and where.
  std::vector<std::vector<std::pair<WarpgroupMma, int>>> issued_;
  std::string sums_in_turns_;  // empty: none
  TurnOrder turns_;
  std::map<void const*, Access> tagged_;  // what holds a tag, and who stored it
  Timeline timeline_;
  std::vector<std::string> mbarrier_names_;  // of the first CTA
};

}  // namespace pyflash::emulator
