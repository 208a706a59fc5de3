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

#include <cute/algorithm/clear.hpp>
#include <cute/tensor_impl.hpp>

#include "cute_kernels/alibi.h"
#include "cute_kernels/device.h"
#include "cute_kernels/dropout.h"
#include "cute_kernels/features.h"
#include "cute_kernels/params.h"
#include "cute_kernels/sinks.h"
#include "cute_kernels/sm80/copy.h"
#include "cute_kernels/sm80/forward/mask.h"
#include "cute_kernels/sm80/forward/problem.h"
#include "cute_kernels/sm80/forward/softmax.h"
#include "cute_kernels/sm80/forward/traits.h"
#include "cute_kernels/sm80/forward/variant.h"
#include "cute_kernels/sm80/gemm.h"
#include "cute_kernels/variant/kernel_params.h"

namespace pyflash::sm80 {

using namespace cute;
using device::Site;

template <class Traits, ForwardFeatures kFeatures, class Variant = variant::NoVariant>
CUTE_DEVICE void forward_cta(variant::ParamsOf<ListedForwardParams, Variant> const& params) {
  static_assert(!kFeatures.equal_shares, "kernels of the SM90 family alone share keys");
  using Element = typename Traits::Element;
  using MmaAtom = typename Traits::MmaAtom;
  using Ldmatrix = typename Traits::SmemCopyAtom;
  using LdmatrixTransposed = typename Traits::SmemCopyAtomTransposed;
  constexpr int kBlockM = Traits::kBlockM;
  constexpr int kBlockN = Traits::kBlockN;
  constexpr int kKVStages = Traits::kKVStages;

  constexpr bool kMaskEnds = kFeatures.right_window;
  constexpr bool kMaskBegins = kFeatures.left_window;
  constexpr bool kPredicatedColumns = kFeatures.predicated_head_dim;

  // Coordinates and early exit.
  int const tidx = device::thread_idx();
  BlockCoord coord;
  if (kFeatures.listed_tiles && params.has_tile_list()) {
    coord = listed_coord(reinterpret_cast<int const*>(params.tile_list), params.num_splits,
                         params.heads);
    if (coord.m_block < 0) {
      return;
    }
  } else {
    coord = block_coord < Traits,
    kMaskEnds || Variant::kHasMask > (params.q_sequences(), params.kv(), params.num_splits,
                                      params.heads, params.batch);
  }
  int const m_block = coord.m_block;
  Rows const q_rows = params.q_sequences().rows_of(coord.batch, device::Loader{});
  Rows const k_rows = [&] {
    Sequences const sequences = params.kv().sequences;
    if constexpr (kFeatures.paged_kv) {
      return params.pages.rows_of(coord.batch, sequences.longest, device::Loader{});
    } else {
      return sequences.rows_of(coord.batch, device::Loader{});
    }
  }();
  int const rows_left = q_rows.length - m_block * kBlockM;
  if (rows_left <= 0) {
    return;
  }
  int const aligned = aligned_column(m_block * kBlockM, q_rows.length, k_rows.length);
  ScoreMask<kBlockN, kMaskEnds, kMaskBegins> const mask(params.mask(), k_rows.length,
                                                        min(rows_left, kBlockM), aligned);
  // Blocks go by their places in the tile's walk.
  auto const walk = variant::walk_of<Variant>(params, coord.batch, coord.head, m_block);
  Interval blocks = mask.blocks();
  if constexpr (Variant::kHasMask) {
    blocks = {0, walk.list[0]};
  }
  if constexpr (kFeatures.fixed_splits) {
    blocks = fixed_split(blocks, coord.split, kBlockN);
  }
  int const blocks_per_split = kFeatures.fixed_splits
                                   ? blocks.end - blocks.begin
                                   : ceil_div(blocks.end - blocks.begin, params.num_splits);
  int const begin_block =
      blocks.begin + (kFeatures.fixed_splits ? 0 : coord.split * blocks_per_split);
  int const end_block = min(begin_block + blocks_per_split, blocks.end);

  // Global tensors, partitioned by the threads that copy them: (CPY_M,CPY_K,n_blocks).
  int const head_kv = params.kv().head_of(coord.head, params.heads);
  BlockCopy<Traits, kBlockM> const copy_M;
  BlockCopy<Traits, kBlockN> const copy_N;
  Tensor tQgQ =
      copy_M.partition(head_matrix<Element const>(params.q, params.q_strides, coord, q_rows));
  Tensor tKgK = copy_N.partition(
      head_matrix(params.template k_at<Element>(coord.batch, head_kv, k_rows.begin),
                  params.kv_strides.k, k_rows));
  Tensor tVgV = copy_N.partition(
      head_matrix(params.template v_at<Element>(coord.batch, head_kv, k_rows.begin),
                  params.kv_strides.v, k_rows));
  Tensor tOgO = copy_M.partition(head_matrix<Element>(params.o, params.o_strides, coord, q_rows));

  // Shared memory, and this lane's rows of its 16 x 16 tiles: of Q (M,K), of K and V^T (N,K).
  // NOTE: a stage by its address: an index inside of a swizzled layout would put its XOR into the loop.
  auto& smem = device::dynamic_smem<typename Traits::SharedStorage>();
  auto stage_of = [](int n_block) {
    return kKVStages == 1 ? 0 : static_cast<uint32_t>(n_block) % kKVStages;
  };
  int const warp_row = tidx / 32 * Traits::kMmaM;
  ThreadOffsets<typename Traits::SmemLayoutQ, Traits::kRowStep, 16> const q_tiles(
      lane_coord<typename Traits::LanesQ>(warp_row));
  ThreadOffsets<typename Traits::SmemLayoutKV, 16, 16> const k_tiles(
      lane_coord<typename Traits::LanesK>());
  ThreadOffsets<typename Traits::SmemLayoutVt, 16, 16> const v_tiles(
      lane_coord<typename Traits::LanesVt>());

  // MMA fragments, and where in a block an accumulator's first row and column are.
  Tensor tSrQ = make_tensor<uint32_t>(typename Traits::FragmentQ{});    // (MMA,MMA_M,MMA_K)
  Tensor tSrK = make_tensor<uint32_t>(typename Traits::FragmentK{});    // (MMA,MMA_N,MMA_K)
  Tensor tOrVt = make_tensor<uint32_t>(typename Traits::FragmentVt{});  // (MMA,MMA_K,MMA_N)
  Tensor acc_O = make_tensor<float>(typename Traits::FragmentO{});      // (MMA,MMA_M,MMA_K)
  using AccRows = typename Traits::AccRows;
  Coord const acc_coord = lane_coord<typename Traits::AccLanes>(warp_row);

  using TileSoftmax = Softmax<Element, Traits::kRowsPerThread, Traits::kOptimizedSoftmax,
                              Traits::kRescaleThreshold, kFeatures.softcap && !Variant::kHasScore>;
  TileSoftmax softmax(Variant::kHasScore ? 1.f : params.softmax_scale,
                      Variant::kHasScore ? kLn2 : params.inverse_scale_log2, params.softcap);

  // What is dropped of P.
  auto dropout = [&] {
    if constexpr (kFeatures.dropout) {
      return DropoutOfRows<Traits::kTilesM, kBlockN>(
          params.dropout, load_dropout(params.dropout, params.heads, coord.batch, coord.head),
          tidx % 32);
    } else {
      return nullptr;
    }
  }();

  auto commit = [&] {
    if constexpr (Traits::kAsyncCopy) {
      device::async_commit();
    }
  };
  auto load_from_pages = [&](KvTensor const& tensor, int n_block, Element* block) {
    Interval const keys = mask.keys.of_some(mask.n_rows).from_0();
    PagedRows<Element> const row_of{params.pages, tensor, coord.batch, head_kv, keys};
    copy_N.template g2s_rows<kPredicatedColumns>(
        [&](int row) { return row_of(n_block * kBlockN + row); }, block, params.d_head);
  };
  auto load_K = [&](int place, auto ragged) {
    device::at(Site::K_g2s);
    int const n_block = walk[place].number;
    if constexpr (kFeatures.paged_kv) {
      load_from_pages(params.kv().k, n_block, smem.k[stage_of(place)]);
    } else {
      copy_N.template g2s<ragged.value, kPredicatedColumns>(
          tKgK(_, _, n_block), smem.k[stage_of(place)],
          {k_rows.length - n_block * kBlockN, params.d_head});
    }
    commit();
  };
  auto load_V = [&](int place, auto ragged) {
    device::at(Site::V_g2s);
    int const n_block = walk[place].number;
    if constexpr (kFeatures.paged_kv) {
      load_from_pages(params.kv().v, n_block, smem.v[stage_of(place)]);
    } else {
      copy_N.template g2s<ragged.value, kPredicatedColumns>(
          tVgV(_, _, n_block), smem.v[stage_of(place)],
          {k_rows.length - n_block * kBlockN, params.d_head});
    }
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

    Element const* const sK = smem.k[stage_of(n_block)];              // (kBlockN,kHeadDim)
    Element const* const sV = smem.v[stage_of(n_block)];              // (kBlockN,kHeadDim)
    Tensor acc_S = make_tensor<float>(typename Traits::FragmentS{});  // (MMA,MMA_M,MMA_N)
    clear(acc_S);
    gemm_staged<MmaAtom, Traits::kStageStepsQK, Traits::kDoubleBuffer>(
        acc_S, tSrQ, tSrK, [&](int k) {
          if constexpr (!Traits::kQInRegisters) {
            device::at(Site::Q_s2r);
            load_A<Ldmatrix>(tSrQ, smem.q, q_tiles, k);
          }
          device::at(Site::K_s2r);
          load_B<Ldmatrix>(tSrK, sK, k_tiles, k);
        });

    if constexpr (Traits::kEagerLoadBlocks) {
      // V[n_block] is visible; every warp has read K[n_block].
      wait_and_sync(Int<kNewerGroups>{});
      load_ahead(load_K, n_block, kKVStages, false_type{});
    } else {
      // Every warp has read K[n_block].
      device::sync_threads();
    }

    if constexpr (Variant::kHasMask || Variant::kHasScore) {
      make_variant_scores<Traits, kFeatures, Variant, masked.value>(
          acc_S, params, coord, {q_rows.length, k_rows.length, 0, 0}, acc_coord,
          walk[n_block].number);
    }
    if constexpr (kFeatures.alibi_slopes) {
      if (params.alibi_slopes.data != nullptr) {
        float const slope = load_slope<Element>(params.alibi_slopes, params.inverse_scale_log2,
                                                coord.batch, coord.head);
        Tensor S = rows_by_columns(acc_S);
        CUTE_UNROLL
        for (int r = 0; r < size<0>(S); ++r) {
          int const m = acc_coord.row + AccRows{}(r);
          add_alibi(S, r, slope, aligned + m - n_block * kBlockN - acc_coord.column,
                    typename Traits::AccColumnsS{});
        }
      }
    }
    if constexpr (masked.value) {
      mask.template apply<AccRows, typename Traits::AccColumnsS>(rows_by_columns(acc_S), acc_coord,
                                                                 walk[n_block].number);
    }
    constexpr bool kFirst = first.value && Traits::kOptimizedSoftmax;
    softmax.template begin<kFirst, masked.value>(acc_S, acc_O);

    if constexpr (!Traits::kEagerLoadBlocks) {
      load_V(n_block, first);
      wait_and_sync(_0{});  // V[n_block] is visible
    }
    // P comes step by step: the exponentials of a step run beside the MMAs of the one before.
    auto multiply_PV = [&](auto two_terms) {
      Tensor tOrP = make_tensor<uint32_t>(OperandOf<decltype(acc_S)>{});  // (MMA,MMA_M,MMA_K)
      gemm_staged<MmaAtom, Traits::kStageStepsPV, Traits::kDoubleBuffer>(
          acc_O, tOrP, tOrVt, [&](int k) {
            device::at(Site::V_s2r);
            load_B<LdmatrixTransposed>(tOrVt, sV, v_tiles, k);
            softmax.template exponentiate<two_terms.value>(acc_S, k);
            if constexpr (kFeatures.dropout) {
              Tensor P = rows_by_columns(acc_S);
              dropout.find(
                  k, n_block,
                  [&](int m) { return (m_block * kBlockM + warp_row + m * Traits::kRowStep) / 16; },
                  [&](int r, int c) { P(r, c) = 0.f; });
            }
            pack_step<Element>(acc_S, tOrP, k);
          });
    };
    if constexpr (TileSoftmax::template kMayLeaveScores<kFirst, masked.value>) {
      if (softmax.leaves_scores()) {
        multiply_PV(true_type{});
        return;
      }
    }
    multiply_PV(false_type{});
  };

  clear(acc_O);
  if (begin_block < end_block) {
    // Prologue.
    device::at(Site::Q_g2s);
    copy_M.template g2s<true, kPredicatedColumns>(tQgQ(_, _, m_block), smem.q,
                                                  {rows_left, params.d_head});
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
      CUTE_UNROLL
      for (int k = 0; k < size<2>(tSrQ); ++k) {
        load_A<Ldmatrix>(tSrQ, smem.q, q_tiles, k);
      }
    }

    // Blocks at the end and at the beginning may be cut by the mask, those between are not.
    // NOTE: one loop with a branch in it, and loops within a loop, took a tenth of the speed.
    int n_block = end_block - 1;
    step(n_block--, true_type{}, true_type{});
    if constexpr (Variant::kHasMask) {
      Interval const uncut = mask.uncut_blocks();
      for (; n_block >= begin_block; --n_block) {
        auto const [number, is_cut] = walk[n_block];
        if (is_cut || number >= uncut.end || number < uncut.begin) {
          step(n_block, false_type{}, true_type{});
        } else {
          step(n_block, false_type{}, false_type{});
        }
      }
    }
    if constexpr (kMaskEnds) {
      int const uncut_end = max(mask.uncut_blocks().end, begin_block);
      for (; n_block >= uncut_end; --n_block) {
        step(n_block, false_type{}, true_type{});
      }
    }
    int const uncut_begin = max(mask.uncut_blocks().begin, begin_block);
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
  auto lse = softmax.template finalise<kFeatures.fixed_splits>(acc_O);  // of each row
  if constexpr (kFeatures.dropout) {
    CUTE_UNROLL
    for (int i = 0; i < size(acc_O); ++i) {
      acc_O(i) *= params.dropout.factor;
    }
  }
  bool const is_partial = params.num_splits > 1;
  if constexpr (kFeatures.sinks) {
    if (params.sinks.data != nullptr &&
        !is_partial) {  // partial results get them when they are merged
      device::at(Site::sinks_g2r);
      join_sinks(acc_O, lse, [&](int r) {
        int const m = acc_coord.row + AccRows{}(r);
        return m < rows_left ? load_sink<Element>(params.sinks, coord.head, m_block * kBlockM + m)
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
  if (acc_coord.column == 0) {
    float* const lse_block =
        is_partial ? params.lse_partial + partial_offset : params.lse + lse_offset;
    CUTE_UNROLL
    for (int r = 0; r < Traits::kRowsPerThread; ++r) {
      int const row = acc_coord.row + AccRows{}(r);
      if (row < rows_left) {
        device::store(lse_block + row, lse[r]);
      }
    }
  }
  if (is_partial) {
    if (kFeatures.fixed_splits && begin_block >= end_block) {
      return;
    }
    device::at(Site::O_r2g);
    store_partial<AccRows, typename Traits::AccColumnsO>(
        rows_by_columns(acc_O), acc_coord, params.o_partial + partial_offset * params.d_head,
        {rows_left, params.d_head});
    return;
  }

  // O passes through the rows of sQ that this warp alone has read.
  device::at(Site::O_r2s);
  device::sync_warp();
  store_packed<Traits>(as_operand_A<Element>(acc_O), acc_coord, smem.o);
  device::sync_threads();  // O is visible
  device::at(Site::O_s2g);
  copy_M.s2g(smem.o, tOgO(_, _, m_block), {rows_left, params.d_head});
}

}  // namespace pyflash::sm80
