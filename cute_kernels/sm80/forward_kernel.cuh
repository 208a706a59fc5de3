// FlashAttention forward with SM80 atoms (Dao 2023, algorithm 1).
//
// One CTA owns one block of kBlockM rows of Q, of one head of one sequence, and writes the same rows of O and lse. The
// blocks of kBlockN rows of K and V that some of these rows attend stream through shared memory, last block first, so that
// the only ragged block comes first:
//   S = Q K[j]^T                 fp32 accumulators, one warp owns whole rows
//   m, l, P = online softmax(S)  in registers; blocks that a mask cuts are a step of their own
//   O = diag(correction) O + P V[j]
// and at the end O / l and lse = m + ln(l) are stored. Where the keys are split, a CTA streams its share of the blocks, and
// stores its O and lse in fp32, to be merged by merge_splits.
// Schedules: eager loads hide V[j] behind QK^T and K[j-1] behind softmax and PV; with n stages of shared memory it is
// V[j-n+1] and K[j-n], so that they may take n blocks' time to arrive. Otherwise each load is waited for where it is needed.
#pragma once

#include <cute/tensor.hpp>

#include "cute_kernels/device.h"
#include "cute_kernels/features.h"
#include "cute_kernels/params.h"
#include "cute_kernels/sm80/copy.h"
#include "cute_kernels/sm80/gemm.h"
#include "cute_kernels/sm80/mask.h"
#include "cute_kernels/sm80/problem.h"
#include "cute_kernels/sm80/softmax.h"
#include "cute_kernels/sm80/traits.h"

namespace pyflash::sm80 {

using namespace cute;
using device::Site;

template <class Traits, ForwardFeatures kFeatures>
CUTE_DEVICE void forward_cta(ForwardParams const& params) {
  using Element = typename Traits::Element;
  constexpr int kBlockM = Traits::kBlockM;
  constexpr int kBlockN = Traits::kBlockN;
  constexpr int kHeadDim = Traits::kHeadDim;
  constexpr int kKVStages = Traits::kKVStages;

  constexpr bool kMaskEnds = kFeatures.right_window;
  constexpr bool kMaskBegins = kFeatures.left_window;
  constexpr bool kPredicatedColumns = kFeatures.predicated_head_dim;

  // Coordinates and early exit.
  int const tidx = device::thread_idx();
  BlockCoord const coord = block_coord<Traits, kMaskEnds>(params);
  int const m_block = coord.m_block;
  Rows const q_rows = rows_of(params.cu_seqlens_q, coord.batch, params.seqlen_q, params.total_q);
  Rows const k_rows = rows_of(params.cu_seqlens_k, coord.batch, params.seqlen_k, params.total_k);
  int const rows_left = q_rows.length - m_block * kBlockM;
  if (rows_left <= 0) {
    return;
  }
  int const diagonal = m_block * kBlockM + k_rows.length - q_rows.length;
  Mask<kBlockN, kMaskEnds, kMaskBegins> const mask(params, k_rows.length, min(rows_left, kBlockM),
                                                   diagonal);
  int const blocks_per_split = ceil_div(mask.end_block() - mask.begin_block(), params.num_splits);
  int const begin_block = mask.begin_block() + coord.split * blocks_per_split;
  int const end_block = min(begin_block + blocks_per_split, mask.end_block());

  // Global tensors.
  int const head_kv = coord.head / (params.heads / params.heads_kv);
  Tensor mQ = head_matrix<Traits>(static_cast<Element const*>(params.q), params.q_strides,
                                  coord.batch, coord.head, q_rows);
  Tensor mK = head_matrix<Traits>(static_cast<Element const*>(params.k), params.k_strides,
                                  coord.batch, head_kv, k_rows);
  Tensor mV = head_matrix<Traits>(static_cast<Element const*>(params.v), params.v_strides,
                                  coord.batch, head_kv, k_rows);
  Tensor mO = head_matrix<Traits>(static_cast<Element*>(params.o), params.o_strides, coord.batch,
                                  coord.head, q_rows);
  auto const block_shape_M = Shape<Int<kBlockM>, Int<kHeadDim>>{};
  auto const block_shape_N = Shape<Int<kBlockN>, Int<kHeadDim>>{};
  auto const block_shape_S = Shape<Int<kBlockM>, Int<kBlockN>>{};
  Tensor gQ = local_tile(mQ, block_shape_M, make_coord(m_block, 0));  // (kBlockM,kHeadDim)
  Tensor gK = local_tile(mK, block_shape_N, make_coord(_, 0));        // (kBlockN,kHeadDim,n_blocks)
  Tensor gV = local_tile(mV, block_shape_N, make_coord(_, 0));        // (kBlockN,kHeadDim,n_blocks)
  Tensor gO = local_tile(mO, block_shape_M, make_coord(m_block, 0));  // (kBlockM,kHeadDim)

  // Shared memory.
  auto& smem = device::dynamic_smem<typename Traits::SharedStorage>();
  auto block = [](Element* data, auto layout) { return make_tensor(make_smem_ptr(data), layout); };
  Tensor sQ = block(smem.q, typename Traits::SmemLayoutQ{});       // (kBlockM,kHeadDim)
  Tensor sK = block(smem.k[0], typename Traits::SmemLayoutKV{});   // (kBlockN,kHeadDim), stage 0
  Tensor sV = block(smem.v[0], typename Traits::SmemLayoutKV{});   // (kBlockN,kHeadDim), stage 0
  Tensor sVt = block(smem.v[0], typename Traits::SmemLayoutVt{});  // (kHeadDim,kBlockN), stage 0
  Tensor sO = block(smem.o, typename Traits::SmemLayoutO{});       // (kBlockM,kHeadDim)

  // Copy partitions, global <-> shared.
  typename Traits::TiledCopyG2S g2s;
  auto const thr_g2s = g2s.get_slice(tidx);
  Tensor tQgQ = thr_g2s.partition_S(gQ);  // (CPY,CPY_M,CPY_K)
  Tensor tQsQ = thr_g2s.partition_D(sQ);  // (CPY,CPY_M,CPY_K)
  Tensor tKgK = thr_g2s.partition_S(gK);  // (CPY,CPY_N,CPY_K,n_blocks)
  Tensor tKsK = thr_g2s.partition_D(sK);  // (CPY,CPY_N,CPY_K)
  Tensor tVgV = thr_g2s.partition_S(gV);  // (CPY,CPY_N,CPY_K,n_blocks)
  Tensor tVsV = thr_g2s.partition_D(sV);  // (CPY,CPY_N,CPY_K)
  Tensor tQcQ = thr_g2s.partition_S(make_identity_tensor(block_shape_M));    // (CPY,CPY_M,CPY_K)
  Tensor tKVcKV = thr_g2s.partition_S(make_identity_tensor(block_shape_N));  // (CPY,CPY_N,CPY_K)

  // MMA partitions and the copies that feed them.
  typename Traits::TiledMma tiled_mma;
  auto const thr_mma = tiled_mma.get_slice(tidx);
  auto const block_shape_Vt = Shape<Int<kHeadDim>, Int<kBlockN>>{};
  Tensor tSrQ =
      make_tensor<Element>(partition_shape_A(tiled_mma, block_shape_M));  // (MMA,MMA_M,MMA_K)
  Tensor tSrK =
      make_tensor<Element>(partition_shape_B(tiled_mma, block_shape_N));  // (MMA,MMA_N,MMA_K)
  Tensor tOrVt =
      make_tensor<Element>(partition_shape_B(tiled_mma, block_shape_Vt));  // (MMA,MMA_K,MMA_N)
  Tensor acc_O = partition_fragment_C(tiled_mma, block_shape_M);           // (MMA,MMA_M,MMA_K)
  Tensor tScS = thr_mma.partition_C(make_identity_tensor(block_shape_S));  // (MMA,MMA_M,MMA_N)
  auto const s2r_Q = make_tiled_copy_A(typename Traits::SmemCopyAtom{}, tiled_mma);
  auto const s2r_K = make_tiled_copy_B(typename Traits::SmemCopyAtom{}, tiled_mma);
  auto const s2r_V = make_tiled_copy_B(typename Traits::SmemCopyAtomTransposed{}, tiled_mma);
  Tensor tSsQ = s2r_Q.get_slice(tidx).partition_S(sQ);        // (CPY,MMA_M,MMA_K)
  Tensor tSsK = s2r_K.get_slice(tidx).partition_S(sK);        // (CPY,MMA_N,MMA_K)
  Tensor tOsVt = s2r_V.get_slice(tidx).partition_S(sVt);      // (CPY,MMA_K,MMA_N)
  Tensor tSrQ_copy = s2r_Q.get_slice(tidx).retile_D(tSrQ);    // (CPY,MMA_M,MMA_K)
  Tensor tSrK_copy = s2r_K.get_slice(tidx).retile_D(tSrK);    // (CPY,MMA_N,MMA_K)
  Tensor tOrVt_copy = s2r_V.get_slice(tidx).retile_D(tOrVt);  // (CPY,MMA_K,MMA_N)

  // A cap leaves nothing but itself to scale.
  bool const is_capped = kFeatures.softcap && params.softcap != 0;
  Softmax<Traits::kRowsPerThread, Traits::kOptimizedSoftmax> softmax(
      is_capped ? params.softcap : params.softmax_scale);

  auto commit = [&] {
    if constexpr (Traits::kAsyncCopy) {
      device::async_commit();
    }
  };
  auto load_K = [&](int n_block, auto ragged) {
    device::at(Site::K_g2s);
    copy_g2s<Traits, ragged.value, kPredicatedColumns>(
        g2s, tKgK(_, _, _, n_block), at_stage<Traits>(tKsK, n_block), tKVcKV,
        {k_rows.length - n_block * kBlockN, params.d_head});
    commit();
  };
  auto load_V = [&](int n_block, auto ragged) {
    device::at(Site::V_g2s);
    copy_g2s<Traits, ragged.value, kPredicatedColumns>(
        g2s, tVgV(_, _, _, n_block), at_stage<Traits>(tVsV, n_block), tKVcKV,
        {k_rows.length - n_block * kBlockN, params.d_head});
    commit();
  };
  auto wait_and_sync = [&](auto n_pending) {
    if constexpr (Traits::kAsyncCopy) {
      device::async_wait<n_pending.value>();
    }
    device::sync_threads();
  };

  // Groups of cp.async that are newer than the one that is waited for: K and V of the blocks ahead.
  constexpr int kNewerGroups = 2 * (kKVStages - 1);
  // Loads the block n_ahead before n_block. Past the first block a ring commits an empty group: kNewerGroups stays true.
  auto load_ahead = [&](auto&& load, int n_block, int n_ahead, auto ragged) {
    if (n_block > begin_block + (n_ahead - 1)) {
      load(n_block - n_ahead, ragged);
    } else if constexpr (kKVStages > 1) {
      commit();
    }
  };

  // One block of K and V. `first`: the last of the blocks, which may be ragged. `masked`: the mask cuts the block.
  // NOTE: called from more than one place, it would not be inlined.
  auto step = [&](int n_block, auto first, auto masked) __attribute__((always_inline)) {
    if constexpr (!Traits::kEagerLoadBlocks) {
      load_K(n_block, first);
    }
    // K[n_block] is visible, and Q the first time; every warp has read V[n_block + 1].
    wait_and_sync(Int<kNewerGroups>{});
    if constexpr (kKVStages > 1) {
      load_ahead(load_V, n_block, kKVStages - 1, first);
    } else if constexpr (Traits::kEagerLoadBlocks) {
      load_V(n_block, first);
    }

    Tensor tSsK_block = at_stage<Traits>(tSsK, n_block);            // (CPY,MMA_N,MMA_K)
    Tensor tOsVt_block = at_stage<Traits>(tOsVt, n_block);          // (CPY,MMA_K,MMA_N)
    Tensor acc_S = partition_fragment_C(tiled_mma, block_shape_S);  // (MMA,MMA_M,MMA_N)
    clear(acc_S);
    gemm_staged<Traits::kStageStepsQK, Traits::kDoubleBuffer>(
        tiled_mma, acc_S, tSrQ, tSrK, [&](int k) {
          if constexpr (!Traits::kQInRegisters) {
            device::at(Site::Q_s2r);
            copy(s2r_Q, tSsQ(_, _, k), tSrQ_copy(_, _, k));
          }
          device::at(Site::K_s2r);
          copy(s2r_K, tSsK_block(_, _, k), tSrK_copy(_, _, k));
        });

    if constexpr (Traits::kEagerLoadBlocks) {
      // V[n_block] is visible; every warp has read K[n_block].
      wait_and_sync(Int<kNewerGroups>{});
      load_ahead(load_K, n_block, kKVStages, false_type{});
    } else {
      // Every warp has read K[n_block].
      device::sync_threads();
    }

    if (is_capped) {
      cap_scores(acc_S, params.softmax_scale / params.softcap);
    }
    if constexpr (masked.value) {
      mask.apply(acc_S, tScS, n_block);
    }
    constexpr bool kMasked = masked.value && (kMaskEnds || kMaskBegins);
    softmax.template update<first.value && Traits::kOptimizedSoftmax, kMasked>(acc_S, acc_O);
    Tensor rP = convert<Element>(acc_S);  // (MMA,MMA_M,MMA_N)
    Tensor tOrP = as_operand_A(rP);       // (MMA,MMA_M,MMA_N/2)

    if constexpr (!Traits::kEagerLoadBlocks) {
      load_V(n_block, first);
      wait_and_sync(_0{});  // V[n_block] is visible
    }
    gemm_staged<Traits::kStageStepsPV, Traits::kDoubleBuffer>(
        tiled_mma, acc_O, tOrP, tOrVt, [&](int k) {
          device::at(Site::V_s2r);
          copy(s2r_V, tOsVt_block(_, _, k), tOrVt_copy(_, _, k));
        });
  };

  clear(acc_O);
  if (begin_block < end_block) {
    // Prologue.
    device::at(Site::Q_g2s);
    copy_g2s<Traits, true, kPredicatedColumns>(g2s, tQgQ, tQsQ, tQcQ, {rows_left, params.d_head});
    commit();
    if constexpr (Traits::kEagerLoadBlocks) {
      load_K(end_block - 1, true_type{});
      for (int n_ahead = 1; n_ahead < kKVStages; ++n_ahead) {
        load_ahead(load_V, end_block, n_ahead, true_type{});
        load_ahead(load_K, end_block, n_ahead + 1, true_type{});
      }
    }
    if constexpr (Traits::kQInRegisters) {
      // Q is visible; K and V may still be in flight.
      wait_and_sync(Int<Traits::kEagerLoadBlocks ? 1 + kNewerGroups : 0>{});
      device::at(Site::Q_s2r);
      copy(s2r_Q, tSsQ, tSrQ_copy);
    }

    // Blocks at the end and at the beginning may be cut by the mask, those between are not.
    // NOTE: one loop with a branch in it, and loops within a loop, took a tenth of the speed.
    int n_block = end_block - 1;
    step(n_block--, true_type{}, true_type{});
    if constexpr (kMaskEnds) {
      int const uncut_end = max(mask.uncut_end_block(), begin_block);
      for (; n_block >= uncut_end; --n_block) {
        step(n_block, false_type{}, true_type{});
      }
    }
    int const uncut_begin = max(mask.uncut_begin_block(), begin_block);
    for (; n_block >= uncut_begin; --n_block) {
      step(n_block, false_type{}, false_type{});
    }
    if constexpr (kMaskBegins) {
      for (; n_block >= begin_block; --n_block) {
        step(n_block, false_type{}, true_type{});
      }
    }
  } else {
    softmax.reset();  // nothing to attend: O = 0, lse = -inf
  }

  // Finalise.
  Tensor lse = softmax.finalise(acc_O);  // (2,MMA_M)
  Tensor rows = rows_by_columns(tScS);   // ((2,MMA_M),(2,MMA_N)) of (row, column)
  bool const is_partial = params.num_splits > 1;
  if constexpr (kFeatures.sinks) {
    if (params.sinks != nullptr && !is_partial) {  // partial results get them when they are merged
      device::at(Site::sinks_g2r);
      join_sinks(acc_O, lse, [&](int r) {
        int const m = get<0>(rows(r, 0));
        return m < rows_left ? load_sink<Element>(params, coord.head, m_block * kBlockM + m)
                             : -INFINITY;
      });
    }
  }

  // Store.
  int64_t const lse_offset = coord.batch * params.lse_strides.batch +
                             coord.head * params.lse_strides.head + q_rows.begin +
                             m_block * kBlockM;
  int64_t const partial_offset = coord.split * params.lse_strides.split + lse_offset;
  device::at(Site::lse_r2g);
  if (get<1>(rows(0, 0)) == 0) {
    float* const lse_block =
        is_partial ? params.lse_partial + partial_offset : params.lse + lse_offset;
    CUTE_UNROLL
    for (int r = 0; r < size(lse); ++r) {
      int const row = get<0>(rows(r, 0));
      if (row < rows_left) {
        device::store(lse_block + row, lse(r));
      }
    }
  }
  if (is_partial) {
    device::at(Site::O_r2g);
    store_partial(acc_O, thr_mma.partition_C(make_identity_tensor(block_shape_M)),
                  params.o_partial + partial_offset * params.d_head, {rows_left, params.d_head});
    return;
  }

  // O passes through the rows of sQ that this warp alone has read.
  Tensor rO = convert<Element>(acc_O);  // (MMA,MMA_M,MMA_K)
  device::at(Site::O_r2s);
  device::sync_warp();
  copy(typename Traits::SmemCopyAtomO{}, rO, thr_mma.partition_C(sO));
  device::sync_threads();  // O is visible
  device::at(Site::O_s2g);
  copy_s2g(typename Traits::VectorCopyAtom{}, thr_g2s.partition_D(sO), thr_g2s.partition_S(gO),
           tQcQ, {rows_left, params.d_head});
}

}  // namespace pyflash::sm80
