// FlashAttention forward with SM80 atoms (Dao 2023, algorithm 1).
//
// One CTA owns one block of kBlockM rows of Q, of one head of one batch, and writes the same rows of O and lse. K and V
// stream through shared memory in blocks of kBlockN rows, last block first, so that the only ragged block comes first:
//   S = Q K[j]^T                 fp32 accumulators, one warp owns whole rows
//   m, l, P = online softmax(S)  in registers
//   O = diag(correction) O + P V[j]
// and at the end O / l and lse = m + ln(l) are stored.
// Schedules: eager loads hide V[j] behind QK^T and K[j-1] behind softmax and PV; otherwise each load is waited for where
// it is needed.
#pragma once

#include <cute/tensor.hpp>

#include "cute_kernels/device.h"
#include "cute_kernels/params.h"
#include "cute_kernels/sm80/copy.h"
#include "cute_kernels/sm80/gemm.h"
#include "cute_kernels/sm80/mask.h"
#include "cute_kernels/sm80/softmax.h"
#include "cute_kernels/sm80/traits.h"

namespace pyflash::sm80 {

using namespace cute;
using device::Site;

// One head of one batch as a matrix of `rows` rows, kHeadDim columns.
template <class Traits, class Element>
CUTE_DEVICE auto head_matrix(Element* base, TensorStrides const& strides, int batch, int head,
                             int rows) {
  return make_tensor(make_gmem_ptr(base + batch * strides.batch + head * strides.head),
                     make_shape(rows, Int<Traits::kHeadDim>{}), make_stride(strides.row, _1{}));
}

// The grid: one CTA per (Q block, head, batch).
template <class Traits>
int64_t n_ctas(ForwardParams const& params) {
  int64_t const n_m_blocks = ceil_div(params.seqlen_q, Traits::kBlockM);
  return n_m_blocks * params.heads * params.batch;
}

template <class Traits>
CUTE_DEVICE void forward_cta(ForwardParams const& params) {
  using Element = typename Traits::Element;
  constexpr int kBlockM = Traits::kBlockM;
  constexpr int kBlockN = Traits::kBlockN;
  constexpr int kHeadDim = Traits::kHeadDim;

  // Coordinates. Neighbouring CTAs share a head, so that its K and V stay in L2.
  int const tidx = device::thread_idx();
  int const n_m_blocks = ceil_div(params.seqlen_q, kBlockM);
  int const m_block = device::block_idx() % n_m_blocks;
  int const head_and_batch = device::block_idx() / n_m_blocks;
  int const head = head_and_batch % params.heads;
  int const batch = head_and_batch / params.heads;
  int const rows_left = params.seqlen_q - m_block * kBlockM;
  int const n_blocks = ceil_div(params.seqlen_k, kBlockN);

  // Global tensors.
  Tensor mQ = head_matrix<Traits>(static_cast<Element const*>(params.q), params.q_strides, batch,
                                  head, params.seqlen_q);
  Tensor mK = head_matrix<Traits>(static_cast<Element const*>(params.k), params.k_strides, batch,
                                  head, params.seqlen_k);
  Tensor mV = head_matrix<Traits>(static_cast<Element const*>(params.v), params.v_strides, batch,
                                  head, params.seqlen_k);
  Tensor mO = head_matrix<Traits>(static_cast<Element*>(params.o), params.o_strides, batch, head,
                                  params.seqlen_q);
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
  Tensor sQ = block(smem.q, typename Traits::SmemLayoutQ{});    // (kBlockM,kHeadDim)
  Tensor sK = block(smem.k, typename Traits::SmemLayoutKV{});   // (kBlockN,kHeadDim)
  Tensor sV = block(smem.v, typename Traits::SmemLayoutKV{});   // (kBlockN,kHeadDim)
  Tensor sVt = block(smem.v, typename Traits::SmemLayoutVt{});  // (kHeadDim,kBlockN)
  Tensor sO = block(smem.o, typename Traits::SmemLayoutO{});    // (kBlockM,kHeadDim)

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

  Softmax<Traits::kRowsPerThread, Traits::kOptimizedSoftmax> softmax(params.softmax_scale);

  auto commit = [&] {
    if constexpr (Traits::kAsyncCopy) {
      device::async_commit();
    }
  };
  auto load_K = [&](int n_block, auto ragged) {
    device::at(Site::K_g2s);
    copy_g2s<Traits, ragged.value>(g2s, tKgK(_, _, _, n_block), tKsK, tKVcKV,
                                   params.seqlen_k - n_block * kBlockN);
    commit();
  };
  auto load_V = [&](int n_block, auto ragged) {
    device::at(Site::V_g2s);
    copy_g2s<Traits, ragged.value>(g2s, tVgV(_, _, _, n_block), tVsV, tKVcKV,
                                   params.seqlen_k - n_block * kBlockN);
    commit();
  };
  auto wait_and_sync = [&](auto n_pending) {
    if constexpr (Traits::kAsyncCopy) {
      device::async_wait<n_pending.value>();
    }
    device::sync_threads();
  };

  // One block of K and V. `first`: the last block of the sequence, which may be ragged.
  auto step = [&](int n_block, auto first) {
    if constexpr (!Traits::kEagerLoadBlocks) {
      load_K(n_block, first);
    }
    // K[n_block] is visible, and Q the first time; every warp has read V[n_block + 1].
    wait_and_sync(_0{});
    if constexpr (Traits::kEagerLoadBlocks) {
      load_V(n_block, first);
    }

    Tensor acc_S = partition_fragment_C(tiled_mma, block_shape_S);  // (MMA,MMA_M,MMA_N)
    clear(acc_S);
    gemm_staged<Traits::kStageStepsQK, Traits::kDoubleBuffer>(
        tiled_mma, acc_S, tSrQ, tSrK, [&](int k) {
          if constexpr (!Traits::kQInRegisters) {
            device::at(Site::Q_s2r);
            copy(s2r_Q, tSsQ(_, _, k), tSrQ_copy(_, _, k));
          }
          device::at(Site::K_s2r);
          copy(s2r_K, tSsK(_, _, k), tSrK_copy(_, _, k));
        });

    if constexpr (Traits::kEagerLoadBlocks) {
      // V[n_block] is visible; every warp has read K[n_block].
      wait_and_sync(_0{});
      if (n_block > 0) {
        load_K(n_block - 1, false_type{});
      }
    } else {
      // Every warp has read K[n_block].
      device::sync_threads();
    }

    if constexpr (first.value) {
      mask_columns(acc_S, tScS, params.seqlen_k - n_block * kBlockN);
    }
    softmax.template update<first.value && Traits::kOptimizedSoftmax>(acc_S, acc_O);
    Tensor rP = convert<Element>(acc_S);  // (MMA,MMA_M,MMA_N)
    Tensor tOrP = as_operand_A(rP);       // (MMA,MMA_M,MMA_N/2)

    if constexpr (!Traits::kEagerLoadBlocks) {
      load_V(n_block, first);
      wait_and_sync(_0{});  // V[n_block] is visible
    }
    gemm_staged<Traits::kStageStepsPV, Traits::kDoubleBuffer>(
        tiled_mma, acc_O, tOrP, tOrVt, [&](int k) {
          device::at(Site::V_s2r);
          copy(s2r_V, tOsVt(_, _, k), tOrVt_copy(_, _, k));
        });
  };

  clear(acc_O);
  if (n_blocks > 0) {
    // Prologue.
    device::at(Site::Q_g2s);
    copy_g2s<Traits, true>(g2s, tQgQ, tQsQ, tQcQ, rows_left);
    commit();
    if constexpr (Traits::kEagerLoadBlocks) {
      load_K(n_blocks - 1, true_type{});
    }
    if constexpr (Traits::kQInRegisters) {
      wait_and_sync(
          Int<Traits::kEagerLoadBlocks ? 1 : 0>{});  // Q is visible; K may still be in flight
      device::at(Site::Q_s2r);
      copy(s2r_Q, tSsQ, tSrQ_copy);
    }

    step(n_blocks - 1, true_type{});
    for (int n_block = n_blocks - 2; n_block >= 0; --n_block) {
      step(n_block, false_type{});
    }
  } else {
    softmax.reset();  // nothing to attend: O = 0, lse = -inf
  }

  // Finalise.
  Tensor lse = softmax.finalise(acc_O);  // (2,MMA_M)
  Tensor rO = convert<Element>(acc_O);   // (MMA,MMA_M,MMA_K)
  Tensor rows = rows_by_columns(tScS);   // ((2,MMA_M),(2,MMA_N)) of (row, column)

  // Store. O passes through the rows of sQ that this warp alone has read.
  device::at(Site::O_r2s);
  device::sync_warp();
  copy(typename Traits::SmemCopyAtomO{}, rO, thr_mma.partition_C(sO));

  device::at(Site::lse_r2g);
  if (get<1>(rows(0, 0)) == 0) {
    float* const lse_head =
        params.lse + (int64_t(batch) * params.heads + head) * params.seqlen_q + m_block * kBlockM;
    CUTE_UNROLL
    for (int r = 0; r < size(lse); ++r) {
      int const row = get<0>(rows(r, 0));
      if (row < rows_left) {
        device::store(lse_head + row, lse(r));
      }
    }
  }

  device::sync_threads();  // O is visible
  device::at(Site::O_s2g);
  copy_s2g(typename Traits::VectorCopyAtom{}, thr_g2s.partition_D(sO), thr_g2s.partition_S(gO),
           tQcQ, rows_left);
}

}  // namespace pyflash::sm80
