// Sums of dQ in memory that one head after another uses, few enough at a time to stay in L2. The CTA that is last to add to those
// of a head rounds them, and CTAs of a later head clear them for the head that has them next. `postprocess` has those of the last
// heads.
#pragma once

#include <cstddef>

#include <cute/arch/copy_sm80.hpp>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/backward/problem.h"
#include "cute_kernels/sm90/backward/round_sums.h"
#include "cute_kernels/sm90/backward/shape.h"
#include "cute_kernels/sm90/backward/sums_count.h"
#include "cute_kernels/sm90/backward/tails.h"
#include "cute_kernels/sm90/backward/threads.h"
#include "cute_kernels/sm90/cute.h"

namespace pyflash::sm90::backward {

using namespace cute;

template <class Traits, BackwardFeatures kFeatures>
struct RecycledSums {
  using Element = typename Traits::Element;
  using Storage = typename Traits::SharedStorage;
  using Piece = typename Traits::PieceDQ;
  static constexpr int kSlabs = Traits::kHeadDim / Piece::kSlab;
  static constexpr int kVectors = Piece::kVectors;
  // Sums in one order have their own memory for each head.
  static constexpr bool kMayBe = !kFeatures.deterministic;
  static constexpr int kThreads = Traits::kNConsumers * kWarpgroup;
  // Shared memory that is free in the end: where K, V, Q, dO and, if no rows go through it, dS were.
  static constexpr int kFreeBytes = offsetof(Storage, ds) +
                                    (Traits::kRowsThroughDS ? 0 : sizeof(Storage::ds)) -
                                    offsetof(Storage, k);
  static constexpr int kStages = kFreeBytes / (kThreads * kVectors * int(sizeof(float4)));
  static_assert(offsetof(Storage, k) < offsetof(Storage, ds) &&
                offsetof(Storage, ds) < offsetof(Storage, dq));
  static constexpr int kStep =
      Traits::kNConsumers * kQueriesOfPiece;  // rows between pieces of a consumer

  KernelParams const& params;
  Storage& smem;
  Tile<kFeatures> const& tile;

  // By a warp that does nothing else.
  CUTE_DEVICE void keep_count() const {
    float const at_first = count_at_first(head());
    device::at(device::Site::dQ_s2g);
    if (were_used(head()) && device::elect_one()) {
      device::wait_until_at_most(count(head()), at_first);
      device::mbarrier_arrive(smem.sums.cleared);
    }
    if (!are_used_again(head())) {
      return;
    }
    if (device::elect_one()) {
      device::mbarrier_wait(smem.sums.added, 0);
      float const before = device::add_release_of_cta(count(head()), -1.f);
      device::store(&smem.sums.is_last, int(before == at_first - float(n_ctas() - 1)));
      device::mbarrier_arrive(smem.sums.counted);
    }
  }

  // By another such warp: clears a share of the sums of the head that is half as many before this one as there are sums.
  // NOTE: whoever rounds them would take twice as long with their zeros, which here are stored beside all other work.
  CUTE_DEVICE void clear_others() const {
    int const other = head() - params.problem.heads_with_sums / 2;
    device::at(device::Site::dQ_s2g);
    if (other >= 0 && are_used_again(other)) {
      for (int i = fresh_lane(); i < kZeros / 4; i += 32) {
        device::store(reinterpret_cast<float4*>(smem.zeros) + i, float4{});
      }
      device::fence_async_proxy();
      device::sync_warp();
      if (device::elect_one()) {
        device::wait_until_at_most(count(other), count_at_first(other) - float(n_ctas() + 1));
        clear_share(other);
        device::add_release(count(other), -1.f);
      }
    }
  }

  // By consumers, before they add.
  CUTE_DEVICE void wait_until_cleared() const {
    if constexpr (kMayBe) {
      if (were_used(head())) {
        device::mbarrier_wait(smem.sums.cleared, 0);
      }
    }
  }

  // By consumers, after the last sum that a warp adds.
  CUTE_DEVICE void announce_added() const {
    if constexpr (kMayBe) {
      if (are_used_again(head())) {
        if (fresh_lane() == 0) {
          device::tma_store_wait_written();
        }
        device::sync_warp();
        if (fresh_lane() == 0) {
          device::mbarrier_arrive(smem.sums.added);
        }
      }
    }
  }

  // By consumers, in the end. memory: shared, of the warp.
  CUTE_DEVICE void round_if_last(int warpgroup, Element* memory) const {
    if constexpr (kMayBe) {
      if (!are_used_again(head())) {
        return;
      }
      device::mbarrier_wait(smem.sums.counted, 0);
      if (!device::load(&smem.sums.is_last)) {
        return;
      }
      round(warpgroup, memory);
      device::named_barrier_sync(kTailBarrier, kThreads);
      if (consumer_thread() == 0) {
        device::add_release(count(head()), -1.f);
      }
    }
  }

 private:
  CUTE_DEVICE static int consumer_thread() { return device::fresh_thread_idx() - kWarpgroup; }
  // The head of k and v. All heads here are counted through all batches.
  CUTE_DEVICE int head() const { return tile.batch * params.problem.heads_kv + tile.head_kv; }
  CUTE_DEVICE bool were_used(int head) const { return head >= params.problem.heads_with_sums; }
  CUTE_DEVICE bool are_used_again(int head) const {
    return head + params.problem.heads_with_sums < params.problem.n_heads_of_keys();
  }
  CUTE_DEVICE int rows_of_head() const { return params.problem.group() * params.problem.padded_q; }
  CUTE_DEVICE float* sums_of(int head) const {
    return params.problem.sums_of(head % params.problem.heads_with_sums * rows_of_head());
  }

  // CTAs that add to the sums of a head, and that clear them. The count begins with count_at_first, and is one less for each CTA
  // that has added, then for the one that has rounded, and then for each that has cleared its share.
  CUTE_DEVICE int n_ctas() const { return params.order.n_blocks * params.cluster; }
  CUTE_DEVICE float* count(int head) const {
    return params.problem.added + head % params.problem.heads_with_sums;
  }
  CUTE_DEVICE float count_at_first(int head) const {
    return float(-(head / params.problem.heads_with_sums) * (2 * n_ctas() + 1));
  }

  CUTE_DEVICE void clear_share(int other) const {
    int n_block, head_of_block;
    int const index = device::block_idx();
    params.order.find(n_block, head_of_block, index / params.cluster);
    int64_t const share = n_block * params.cluster + index % params.cluster;
    int64_t const n_parts = int64_t(rows_of_head()) * Traits::kHeadDim / kZeros;
    int const end = int((share + 1) * n_parts / n_ctas());
    for (int i = int(share * n_parts / n_ctas()); i < end; ++i) {
      device::bulk_store(smem.zeros, sums_of(other) + int64_t(i) * kZeros, kZeros * sizeof(float));
    }
    device::tma_store_commit();
    device::tma_store_wait_written();
  }

  // The slab of sums that a consumer asks for next.
  struct Next {
    int row;
    int slab = 0;

    CUTE_DEVICE void advance() {
      if (++slab == kSlabs) {
        slab = 0;
        row += kStep;
      }
    }
  };

  // NOTE: memory is slow to answer while other CTAs add, so as much is asked for at a time as there is room.
  CUTE_DEVICE void round(int warpgroup, Element* memory) const {
    AttentionGradients const& problem = params.problem;
    constexpr int kAtATime = kSlabs < 2 ? kSlabs : 2;
    // Those of the group's heads, one behind the other.
    int const n_rows = rows_of_head();
    float* const sums = sums_of(head());
    auto const vectors = [&](int row, int slab) {
      return vectors_of<Piece>(sums + int64_t(row) * Traits::kHeadDim, slab);
    };
    auto const staged = [&](int stage, int i) {
      return reinterpret_cast<float4*>(smem.k) + (stage * kVectors + i) * kThreads +
             consumer_thread();
    };
    Next next{warpgroup * kQueriesOfPiece};
    auto const load_next = [&](int stage) {
      if (next.row < n_rows) {
        float4* const from = vectors(next.row, next.slab);
        CUTE_UNROLL
        for (int i = 0; i < kVectors; ++i) {
          SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>::copy(
              reinterpret_cast<uint128_t const&>(from[i * 32]),
              reinterpret_cast<uint128_t&>(*staged(stage, i)), true);
        }
      }
      device::async_commit();
      next.advance();
    };
    for (int stage = 0; stage < kStages; ++stage) {
      load_next(stage);
    }
    int stage = 0;
    int query_head = tile.head_kv * problem.group();
    int row_of_query_head = 0;
    CUTE_NO_UNROLL
    for (int row = warpgroup * kQueriesOfPiece; row < n_rows; row += kStep) {
      while (row - row_of_query_head >= problem.padded_q) {
        ++query_head;
        row_of_query_head += problem.padded_q;
      }
      QueryPiece const piece =
          QueryPiece::of(problem, tile.batch, query_head, row - row_of_query_head);
      CUTE_NO_UNROLL
      for (int slab = 0; slab < kSlabs; slab += kAtATime) {
        device::async_wait<kStages - kAtATime>();
        CUTE_UNROLL
        for (int i = 0; i < kAtATime; ++i) {
          store_rounded<Element, Piece>(problem, piece, slab + i, memory, [&](int at) {
            return device::load(staged((stage + i) % kStages, at));
          });
        }
        CUTE_UNROLL
        for (int i = 0; i < kAtATime; ++i) {
          load_next(stage);
          stage = stage + 1 == kStages ? 0 : stage + 1;
        }
      }
    }
  }
};

}  // namespace pyflash::sm90::backward
