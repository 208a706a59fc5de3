// What leaves a computing warpgroup of a backward: dS of each block, to all of them; dQ, to its sums; dK and dV at the end.
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/backward/cluster_sums.h"
#include "cute_kernels/sm90/backward/epilogue.h"
#include "cute_kernels/sm90/backward/problem.h"
#include "cute_kernels/sm90/backward/recycled_sums.h"
#include "cute_kernels/sm90/backward/threads.h"
#include "cute_kernels/sm90/backward/traits.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/gemm.h"

namespace pyflash::sm90::backward {

using namespace cute;
using device::Site;

template <class Traits, BackwardFeatures kFeatures>
struct Outputs {
  using Element = typename Traits::Element;

  KernelParams const& params;
  typename Traits::SharedStorage& smem;
  Tile<kFeatures> const& tile;
  int const warpgroup;  // of the consumers
  static constexpr int kValuesDQ = Traits::PieceDQ::kValues;
  static constexpr int kWarpDQ = Traits::PieceDQ::kWarpFloats;
  // In one order senders wait for turns, and add dQ unless it is added from registers.
  static constexpr bool kSendersAdd = kFeatures.deterministic && !Traits::kDQByRed;
  int n_left =
      0;  // blocks of dQ that senders are to add, or that were added from registers in one order

  // dS^T to shared memory, where both consumers read it for dQ once it is visible and announced.
  template <class FragmentP>
  CUTE_DEVICE void store_dS(FragmentP const& rDS, int stage) {
    device::at(Site::dS_r2s);
    int const lane = fresh_lane();
    int const key = Traits::first_key(warpgroup) + fresh_thread() / 32 * 16 + lane % 16;
    // (kBlockN,kBlockM,kStagesDS)
    device::SmemAddress const first = Traits::SlabsDS::address(
        device::smem_address(smem.ds), typename Traits::SmemLayoutDSt{}, key, lane / 16 * 8, stage);
    Tensor pairs = recast<uint32_t>(rDS);
    CUTE_UNROLL
    for (int c = 0; c < Traits::kBlockM; c += 16) {
      // Warpgroups with the same keys have the same dS: each stores a share of the queries.
      if (Traits::kSharesKeys && c * Traits::kNConsumers / Traits::kBlockM != warpgroup) {
        continue;
      }
      uint32_t const words[4] = {pairs(c / 4), pairs(c / 4 + 1), pairs(c / 4 + 2),
                                 pairs(c / 4 + 3)};
      device::store_matrices(words, columns_on(first, c));
    }
  }

  // Behind store_dS, for whose stores it waits, best once other MMAs are issued.
  CUTE_DEVICE void make_dS_visible() { device::fence_async_proxy(); }

  // Behind both. Says, too, that this warp has read all of the stage before, where the next dS is stored if there are two.
  CUTE_DEVICE void announce_dS(int stage) {
    device::sync_warp();
    if (device::elect_one()) {
      device::mbarrier_arrive(smem.ds_ready[stage]);
    }
  }

  // Where there is one stage of dS: when this warp has read it, and before the next dS of it is stored. parity: of the stage that was
  // read.
  CUTE_DEVICE void release_dS() {
    if constexpr (Traits::kStagesDS == 1) {
      device::sync_warp();
      if (device::elect_one()) {
        device::mbarrier_arrive(smem.parts.ds_read);
      }
    }
  }
  CUTE_DEVICE void wait_for_room_for_dS(uint32_t parity) {
    if constexpr (Traits::kStagesDS == 1) {
      device::at(Site::dS_r2s);
      device::mbarrier_wait(smem.parts.ds_read, parity);
    }
  }

  // Adds this warp's 16 rows of dQ to the sums of the block, whose first row in the workspace is `row`.
  template <class AccDQ>
  CUTE_DEVICE void send_dQ(AccDQ const& acc_dQ, int row) {
    stage_dQ(acc_dQ, row);
    send_staged_dQ(row);
  }

  // The same in two steps: stage_dQ reads the accumulator, send_staged_dQ adds to the sums.
  // NOTE: the second begins with a fence that waits for the stores of the first, best once other MMAs are issued.
  template <class AccDQ>
  CUTE_DEVICE void stage_dQ(AccDQ const& acc_dQ, int row) {
    if constexpr (Traits::kDQByRed) {
      reduce_dQ(acc_dQ, part_of_dQ(row));
      return;
    }
    device::at(Site::dQ_r2s);
    float4* const staged4 = reinterpret_cast<float4*>(staged_dQ()) + fresh_lane();
    wait_for_sent_dQ();
    CUTE_UNROLL
    for (int i = 0; i < kValuesDQ; i += 4) {
      device::store(staged4 + i / 4 * 32,
                    float4{acc_dQ(i), acc_dQ(i + 1), acc_dQ(i + 2), acc_dQ(i + 3)});
    }
  }
  CUTE_DEVICE void send_staged_dQ(int row) {
    if constexpr (Traits::kDQByRed) {
      return;
    }
    device::fence_async_proxy();
    device::sync_warp();
    if constexpr (kSendersAdd) {
      if (fresh_lane() == 0) {
        device::mbarrier_arrive(smem.dq_turns[warpgroup].by_warps[n_left % kSenders]);
      }
      ++n_left;
      return;
    }
    device::at(Site::dQ_s2g);
    if (fresh_lane() == 0) {
      device::bulk_reduce_add(staged_dQ(), params.problem.dq_sum + part_of_dQ(row) * kWarpDQ,
                              kWarpDQ * sizeof(float));
      device::tma_store_commit();
    }
  }

  // Once, after the last dQ.
  template <class AccDKV>
  CUTE_DEVICE void store(AccDKV& acc_dK, AccDKV& acc_dV) {
    AttentionGradients const& problem = params.problem;
    RecycledSums<Traits, kFeatures> const sums{params, smem, tile};
    sums.announce_added();
    wait_for_sent_dQ();
    bool stores_dV = true;
    bool stores_dK = true;
    if (params.cluster > 1) {
      ClusterSums<Traits> const parts{smem, warpgroup};
      parts.run(acc_dV, acc_dK);
      stores_dV = parts.owns(parts.kDV);
      stores_dK = parts.owns(parts.kDK);
    }
    if (Traits::kRowsThroughDS) {  // nobody reads dS any more
      device::named_barrier_sync(kTailBarrier, Traits::kNConsumers * kWarpgroup);
    }
    if (stores_dV) {
      store_rows(acc_dV, 1.f, problem.dv, problem.dv_strides);
    }
    if (stores_dK) {
      store_rows(acc_dK, problem.softmax_scale, problem.dk, problem.dk_strides);
    }
    sums.round_if_last(warpgroup, reinterpret_cast<Element*>(staged_dQ()));
  }

 private:
  // Where this warp's rows are in the sums, in units of kWarpDQ.
  CUTE_DEVICE int64_t part_of_dQ(int row) const {
    int piece = warpgroup;
    if constexpr (Traits::kColumnParts > 1) {
      piece += tile.column_part * Traits::kNConsumers;
    }
    return int64_t(uint32_t(row)) * Traits::kHeadDim / kWarpDQ + piece * Traits::kWarpsPerConsumer +
           fresh_thread() / 32;
  }

  // That many columns of dS^T, a multiple of 16, behind an element of the first 16.
  CUTE_DEVICE static device::SmemAddress columns_on(device::SmemAddress first, int n) {
    constexpr int kSlabBytes = kSlabDS * Traits::kBlockN * sizeof(Element);
    return Traits::SlabsDS::further(first, 0, n % kSlabDS) + n / kSlabDS * kSlabBytes;
  }

  // From registers.
  template <class AccDQ>
  CUTE_DEVICE void reduce_dQ(AccDQ const& acc_dQ, int64_t part) {
    device::at(Site::dQ_s2g);
    if constexpr (kFeatures.deterministic) {
      device::mbarrier_wait(smem.dq_turns[warpgroup].by_sender[n_left % kSenders],
                            n_left / kSenders % 2);
    }
    auto* const sums =
        reinterpret_cast<float4*>(params.problem.dq_sum + part * kWarpDQ) + fresh_lane();
    CUTE_UNROLL
    for (int i = 0; i < kValuesDQ; i += 4) {
      device::reduce_add(sums + i / 4 * 32,
                         float4{acc_dQ(i), acc_dQ(i + 1), acc_dQ(i + 2), acc_dQ(i + 3)});
    }
    if constexpr (kFeatures.deterministic) {
      device::sync_warp();  // all lanes have added
      if (fresh_lane() == 0) {
        device::mbarrier_arrive(smem.dq_turns[warpgroup].by_warps[n_left % kSenders]);
      }
      ++n_left;
    }
  }

  // This warp's part of the sums of dQ, or rows of dK and dV, on their way out.
  CUTE_DEVICE float* staged_dQ() {
    float* const memory = Traits::kRowsThroughDS ? reinterpret_cast<float*>(smem.ds) : smem.dq;
    return memory + warp_of_tile() * Traits::kWarpStaged;
  }
  CUTE_DEVICE int warp_of_tile() const {
    return warpgroup * Traits::kWarpsPerConsumer + fresh_thread() / 32;
  }

  // Waits until what this warp sent before has been read.
  CUTE_DEVICE void wait_for_sent_dQ() {
    if constexpr (kSendersAdd) {
      if (n_left > 0) {
        int const last = n_left - 1;
        device::mbarrier_wait(smem.dq_turns[warpgroup].by_sender[last % kSenders],
                              last / kSenders % 2);
      }
      return;
    }
    if (fresh_lane() == 0) {
      device::tma_store_wait<0>();
    }
    device::sync_warp();
  }

  CUTE_DEVICE int first_column_dKV() const {
    int const in_part = Traits::first_column_dKV(warpgroup);
    if constexpr (Traits::kColumnParts > 1) {
      return tile.column_part * Traits::kOwnColumns + in_part;
    } else {
      return in_part;
    }
  }

  template <class AccDKV>
  CUTE_DEVICE void store_rows(AccDKV& acc, float scale, void* tensor,
                              TensorStrides const& strides) {
    int const first_key = tile.first_key + Traits::first_key(warpgroup) + fresh_thread() / 32 * 16;
    int const first_column = first_column_dKV();
    Element* const out = static_cast<Element*>(tensor) + tile.batch * strides.batch +
                         tile.head_kv * strides.head +
                         (tile.keys().begin + first_key) * strides.row + first_column;
    auto* const memory = reinterpret_cast<Element*>(staged_dQ());
    CUTE_UNROLL
    for (int column = 0; column < Traits::kColumnsDKV; column += Traits::kSlab) {
      store_slab<Traits::kSlab, Element>(acc, column, scale, memory,
                                         {out + column, strides.row, tile.keys().length - first_key,
                                          params.problem.d_head - first_column - column});
    }
  }
};

}  // namespace pyflash::sm90::backward
