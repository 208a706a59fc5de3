// A computing warpgroup of a backward: 64 keys of the tile, and a part of each block's dQ.
#pragma once

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/backward/outputs.h"
#include "cute_kernels/sm90/backward/problem.h"
#include "cute_kernels/sm90/backward/scores.h"
#include "cute_kernels/sm90/backward/tails.h"
#include "cute_kernels/sm90/backward/threads.h"
#include "cute_kernels/sm90/backward/traits.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/gemm.h"

namespace pyflash::sm90::backward {

using namespace cute;
using device::Site;

template <class Traits, BackwardFeatures kFeatures, class Variant>
struct Consumer {
  using Element = typename Traits::Element;
  using SharedStorage = typename Traits::SharedStorage;
  using Blocks = variant::BlocksOf<kFeatures, Traits::kBlockN, Variant>;
  using Params = variant::ParamsOf<KernelParams, Variant>;
  using Position = RingPosition<Traits::kStages>;
  using PositionDS = RingPosition<Traits::kStagesDS>;
  using PositionDO = RingPosition<Traits::kStagesDO>;
  static constexpr int kBlockM = Traits::kBlockM;
  static constexpr int kHeadDim = Traits::kHeadDim;
  template <int kColumns>
  using Acc = decltype(make_tensor<float>(Accumulator<kColumns>{}));
  using AccS = Acc<kBlockM>;                // (MMA,MMA_M,MMA_N) of (keys, queries)
  using AccDKV = Acc<Traits::kColumnsDKV>;  // (MMA,MMA_M,MMA_N) of (keys, columns)
  using AccDQ = Acc<Traits::kColumnsDQ>;    // (MMA,MMA_M,MMA_N) of (queries, columns)
  static constexpr bool kStagesDiffer = Traits::kStagesDO != Traits::kStages;
  using FragmentP = decltype(make_tensor<Element>(FragmentA<kBlockM>{}));
  struct Nothing {};
  using Dropped = std::conditional_t<kFeatures.dropout, DropoutOfColumns<kBlockM>, Nothing>;
  // dS is computed from the operand P, which is not always P^T.
  using ScoresOfBlock = Scores<Traits, kFeatures, Variant>;
  static constexpr bool kPacksSlopes = ScoresOfBlock::kPacksSlopes;
  static constexpr bool kEarlyDP =
      Traits::kEarlyDP && !kFeatures.dropout && (kPacksSlopes || !ScoresOfBlock::kMakesOperand);
  using Slopes = std::conditional_t<kPacksSlopes, FragmentP, Nothing>;

  Params const& params;
  SharedStorage& smem;
  Tile<kFeatures> const& tile;
  int const warpgroup;  // of the consumers
  ScoresOfBlock const scores;
  Outputs<Traits, kFeatures> outputs;

  AccDKV acc_dK;
  AccDKV acc_dV;
  FragmentP tdVrP;   // (MMA,MMA_M,MMA_K) of (keys, queries)
  FragmentP tdKrDS;  // (MMA,MMA_M,MMA_K) of (keys, queries)
  Position read;     // the block of Q, and where dO has as many stages, of dO
  // Where dO has others.
  [[no_unique_address]] std::conditional_t<kStagesDiffer, PositionDO, Nothing> read_dO;
  PositionDS at_dS;  // dS of the newest block whose dQ is not yet issued
  Dropped dropped;   // of the newest block of S
  Slopes slopes;     // the same

  CUTE_DEVICE Consumer(Params const& params, SharedStorage& smem, Tile<kFeatures> const& tile,
                       int warpgroup)
      : params(params),
        smem(smem),
        tile(tile),
        warpgroup(warpgroup),
        scores{params.problem,
               params.problem.softmax_scale * kLog2e,
               {tile, tile.first_key + Traits::first_key(warpgroup)},
               variant::Given<Variant>(params)},
        outputs{params, smem, tile, warpgroup} {
    clear(acc_dK);
    clear(acc_dV);
  }

  CUTE_DEVICE void run() {
    Blocks block(tile, scores.given);
    if (block.exists()) {
      smem.pipeline_K.wait({});
      smem.pipeline_V.wait({});
      RecycledSums<Traits, kFeatures>{params, smem, tile}.wait_until_cleared();
      drop_tails_of_keys();
      if constexpr (kEarlyDP) {
        run_with_early_dP(block);
      } else if constexpr (Traits::kOverlap) {
        run_overlapped(block);
      } else {
        run_in_turn(block);
      }
    }
    if constexpr (kFeatures.dropout) {
      CUTE_UNROLL
      for (int i = 0; i < size(acc_dV); ++i) {
        acc_dV(i) *= params.dropout.factor;
      }
    }
    outputs.store(acc_dK, acc_dV);
  }

 private:
  // dQ of a block while P of the next one is computed.
  CUTE_DEVICE void run_in_turn(Blocks& block) {
    int at = row_of_dQ(block);
    step(false_type{}, block, at);
    for (block.advance(); block.exists(); block.advance()) {
      int const at_next = row_of_dQ(block);
      step(true_type{}, block, at);
      at = at_next;
    }
    compute_dQ(at);
  }

  // Of the newest block.
  CUTE_DEVICE void compute_dQ(int at) {
    AccDQ acc_dQ;
    issue_dQ(acc_dQ);
    gemm_wait<0>(acc_dQ);
    outputs.send_dQ(acc_dQ, at);
  }

  // at: of the dQ of the block before, where there is one.
  template <class HasBefore>
  CUTE_DEVICE void step(HasBefore, Blocks const& block, int at) {
    AccS acc_S;
    issue_S(acc_S, block.m_block);
    draw_dropout(block);
    if constexpr (HasBefore::value) {
      AccDQ acc_dQ;
      issue_dQ(acc_dQ);
      at_dS.advance();
      gemm_wait<1>(acc_S);
      release_others_of_Q();
      exponentiate(acc_S, block);
      gemm_wait<0>(acc_dQ);
      outputs.release_dS();
      outputs.send_dQ(acc_dQ, at);
    } else {
      gemm_wait<0>(acc_S);
      release_others_of_Q();
      exponentiate(acc_S, block);
    }
    AccS acc_dP;
    wait_for_dO(block.m_block);
    issue_dP(acc_dP);
    issue_dV(acc_S);
    gemm_wait<1>(acc_dP);
    release_others_of_dO();
    compute_dS(acc_S, acc_dP, block);
    if constexpr (HasBefore::value) {
      outputs.wait_for_room_for_dS(at_dS.parity ^ 1);
    }
    outputs.store_dS(tdKrDS, at_dS.stage);
    outputs.make_dS_visible();
    outputs.announce_dS(at_dS.stage);
    issue_dK(read);
    gemm_wait<1>(acc_dV);
    release_dO();
    finish_block();
  }

  // The stage of dO and -delta.
  CUTE_DEVICE auto const& at_dO() const {
    if constexpr (kStagesDiffer) {
      return read_dO;
    } else {
      return read;
    }
  }
  CUTE_DEVICE void release_dO() {
    smem.pipeline_dO.release(at_dO());
    if constexpr (kStagesDiffer) {
      read_dO.advance();
    }
  }

  // S and dP alone read the columns of Q and dO that are other CTAs'.
  CUTE_DEVICE void release_others_of_Q() {
    if constexpr (Traits::kColumnParts > 1) {
      smem.parts.pipeline_Q.release({});
    }
  }
  CUTE_DEVICE void release_others_of_dO() {
    if constexpr (Traits::kColumnParts > 1) {
      smem.parts.pipeline_dO.release({});
    }
  }

  // S and dP of a block are issued together: P is computed beside dP, dS beside dV and dQ of the block before, which leaves
  // beside dK.
  CUTE_DEVICE void run_with_early_dP(Blocks& block) {
    step_with_early_dP(false_type{}, block, 0);
    int at = row_of_dQ(block);
    for (block.advance(); block.exists(); block.advance()) {
      step_with_early_dP(true_type{}, block, at);
      at = row_of_dQ(block);
    }
    compute_dQ(at);
  }

  // at: of the dQ of the block before, where there is one.
  // NOTE: ptxas serialises MMAs where something is in flight from one step to the next, or where dP is seeded beside S.
  template <class HasBefore>
  CUTE_DEVICE void step_with_early_dP(HasBefore, Blocks const& block, int at) {
    AccS acc_dP;
    wait_for_dO(block.m_block);
    scores.seed_dP(acc_dP, numbers_of(smem.minus_delta, at_dO()));
    {
      AccS acc_S;
      issue_S(acc_S, block.m_block);
      issue_dP(acc_dP);
      gemm_wait<1>(acc_S);
      exponentiate(acc_S, block);
      issue_dV(acc_S);
    }
    if constexpr (HasBefore::value) {
      AccDQ acc_dQ;
      issue_dQ(acc_dQ);
      at_dS.advance();
      gemm_wait<2>(acc_dP);
      store_dS(acc_dP, block);
      gemm_wait<1>(acc_dV);
      smem.pipeline_dO.release(read);
      issue_dK(read);
      outputs.make_dS_visible();
      gemm_wait<1>(acc_dQ);
      outputs.announce_dS(at_dS.stage);
      outputs.send_dQ(acc_dQ, at);
    } else {
      gemm_wait<1>(acc_dP);
      store_dS(acc_dP, block);
      gemm_wait<0>(acc_dV);
      smem.pipeline_dO.release(read);
      issue_dK(read);
      outputs.make_dS_visible();
      outputs.announce_dS(at_dS.stage);
    }
    finish_block();
  }

  // Whether this warpgroup adds up the gradients of what is captured of a block: one of those that have the same scores, of this CTA or
  // another.
  CUTE_DEVICE bool sums_captured(Blocks const& block) const {
    if constexpr (Traits::kColumnParts > 1) {
      return block.m_block % Traits::kColumnParts == tile.column_part;
    }
    return !Traits::kSharesKeys || block.m_block % Traits::kNConsumers == warpgroup;
  }

  // dS^T of dP^T - delta and of the operand P^T, which dV may be reading.
  CUTE_DEVICE void store_dS(AccS& acc_dP, Blocks const& block) {
    if constexpr (kPacksSlopes) {
      scores.seeded_to_dS(slopes, acc_dP);
    } else {
      scores.seeded_to_dS(tdVrP, acc_dP);
    }
    if constexpr (variant::kHasSums<Variant>) {
      scores.sum_captured(acc_dP, acc_dP, block, sums_captured(block));  // of no score that is kept
    }
    convert_P<Element>(acc_dP, tdKrDS);
    outputs.store_dS(tdKrDS, at_dS.stage);
  }

  CUTE_DEVICE void finish_block() {
    gemm_wait<0>(acc_dK);
    smem.pipeline_Q.release(read);
    read.advance();
  }

  // S of a block is issued before dQ and dK of the one before: P is computed beside these, dQ leaves beside dK, and dS is
  // computed beside dV.
  // NOTE: an accumulator lives in one iteration: the fences before its MMAs would keep what it held.
  CUTE_DEVICE void run_overlapped(Blocks& block) {
    {
      AccS acc_S;
      issue_S(acc_S, block.m_block);
      draw_dropout(block);
      gemm_wait<0>(acc_S);
      exponentiate(acc_S, block);
      scores_to_dS(acc_S, block, [] {}, [] {});
    }
    int at = row_of_dQ(block);
    for (block.advance(); block.exists(); block.advance()) {
      Position const before = read;
      read.advance();
      AccS acc_S;
      issue_S(acc_S, block.m_block);
      draw_dropout(block);
      gemm_wait<1>(acc_dV);
      smem.pipeline_dO.release(before);
      AccDQ acc_dQ;
      issue_dQ(acc_dQ);
      issue_dK(before);
      at_dS.advance();
      gemm_wait<2>(acc_S);
      exponentiate(acc_S, block);
      gemm_wait<1>(acc_dQ);
      outputs.stage_dQ(acc_dQ, at);
      scores_to_dS(
          acc_S, block,
          [&] {
            gemm_wait<1>(acc_dK);
            smem.pipeline_Q.release(before);
          },
          [&] { outputs.send_staged_dQ(at); });
      at = row_of_dQ(block);
    }
    gemm_wait<0>(acc_dV);
    smem.pipeline_dO.release(read);
    AccDQ acc_dQ;
    issue_dQ(acc_dQ);
    issue_dK(read);
    gemm_wait<1>(acc_dQ);
    outputs.send_dQ(acc_dQ, at);
    gemm_wait<0>(acc_dK);
    smem.pipeline_Q.release(read);
  }

  // P of a block to dS in shared memory, and dV, which is in flight. beside_dP(): once dP is issued; beside_dV(): once dV is, too.
  template <class BesideDP, class BesideDV>
  CUTE_DEVICE void scores_to_dS(AccS& acc_P, Blocks const& block, BesideDP const& beside_dP,
                                BesideDV const& beside_dV) {
    AccS acc_dP;
    wait_for_dO(block.m_block);
    issue_dP(acc_dP);
    beside_dP();
    issue_dV(acc_P);
    beside_dV();
    gemm_wait<1>(acc_dP);
    compute_dS(acc_P, acc_dP, block);
    outputs.store_dS(tdKrDS, at_dS.stage);
    outputs.make_dS_visible();
    outputs.announce_dS(at_dS.stage);
  }

  // What operands of all blocks begin with. NOTE: these loops have no registers for their descriptors, which the
  // compiler would compute ahead of it.
  CUTE_DEVICE static Element* of_all_blocks(Element* data) {
    return Traits::kOverlap || Traits::kWide || kEarlyDP ? device::fresh(data) : data;
  }

  // The same of operands in one stage.
  template <int kStages>
  CUTE_DEVICE static Element* staged(Element* data) {
    return kStages == 1 ? of_all_blocks(data) : data;
  }

  // What the tiles hold of the next sequence.
  CUTE_DEVICE void drop_tails_of_keys() {
    if constexpr (kFeatures.packed) {
      if (params.problem.k_sequences.is_packed()) {
        int const n_keys = tile.keys().length - tile.first_key;
        if constexpr (std::is_same_v<typename Traits::SmemLayoutK, typename Traits::SmemLayoutV>) {
          for (Element* keys : {smem.k, smem.v}) {
            drop_tail_of_keys(keys, typename Traits::SmemLayoutK{}, n_keys);
          }
        } else {
          drop_tail_of_keys(smem.k, typename Traits::SmemLayoutK{}, n_keys);
          drop_tail_of_keys(smem.v, typename Traits::SmemLayoutV{}, n_keys);
        }
      }
    }
  }
  template <class Layout>
  CUTE_DEVICE static void drop_tail_of_keys(Element* keys, Layout const& layout, int n_keys) {
    zero_tail<Traits>(make_tensor(make_smem_ptr(keys), layout), n_keys);
  }
  template <class Layout>
  CUTE_DEVICE void drop_tail(Element* queries, int stage, int m_block) {
    if constexpr (kFeatures.packed) {
      if (params.problem.q_sequences.is_packed()) {
        Tensor rows = make_tensor(make_smem_ptr(queries), Layout{});
        zero_tail<Traits>(rows(_, _, stage), tile.queries().length - m_block * kBlockM);
      }
    }
  }
  CUTE_DEVICE void drop_tail_of_others(Element* queries, int m_block) {
    if constexpr (kFeatures.packed) {
      if (params.problem.q_sequences.is_packed()) {
        zero_tail<Traits>(make_tensor(make_smem_ptr(queries), typename Traits::SmemLayoutOthers{}),
                          tile.queries().length - m_block * kBlockM);
      }
    }
  }

  // S^T = K Q^T
  CUTE_DEVICE void issue_S(AccS& acc_S, int m_block) {
    device::at(Site::QK);
    smem.pipeline_Q.wait(read);
    drop_tail<typename Traits::SmemLayoutQ>(smem.q, read.stage, m_block);
    Tensor tSrK = descriptors<typename Traits::OperandK>(of_all_blocks(
        smem.k + Traits::first_key(warpgroup) * Traits::kSlabK));  // (MMA,MMA_M,MMA_K)
    Tensor tSrQ = descriptors<typename Traits::OperandQ>(smem.q);  // (MMA,MMA_N,MMA_K,kStages)
    if constexpr (Traits::kColumnParts > 1) {
      smem.parts.pipeline_Q.wait(at_dO());
      drop_tail_of_others(smem.q_others(), m_block);
      Tensor tSrOthers = descriptors<typename Traits::OperandOthers>(
          of_all_blocks(smem.q_others()));  // (MMA,MMA_N,MMA_K)
      gemm_async(typename Traits::MmaS{}, tSrK, tSrQ(_, _, _, read.stage), tSrOthers, acc_S, false);
    } else {
      gemm_async(typename Traits::MmaS{}, tSrK, tSrQ(_, _, _, read.stage), acc_S, false);
    }
  }

  // Waits for dO and -delta of the block.
  CUTE_DEVICE void wait_for_dO(int m_block) {
    device::at(Site::dP);
    smem.pipeline_dO.wait(at_dO());
    drop_tail<typename Traits::SmemLayoutDO>(smem.grad_o, at_dO().stage, m_block);
    if constexpr (Traits::kColumnParts > 1) {
      smem.parts.pipeline_dO.wait(at_dO());
      drop_tail_of_others(smem.grad_o_others(), m_block);
    }
  }

  // dP^T = V dO^T, or with early_dP acc_dP += V dO^T
  CUTE_DEVICE void issue_dP(AccS& acc_dP) {
    device::at(Site::dP);
    Tensor tdPrV = descriptors<typename Traits::OperandV>(
        of_all_blocks(smem.v + Traits::first_key(warpgroup) * Traits::kSlab));  // (MMA,MMA_M,MMA_K)
    Tensor tdPrDO = descriptors<typename Traits::OperandDO>(
        staged<Traits::kStagesDO>(smem.grad_o));  // (MMA,MMA_N,MMA_K,kStagesDO)
    if constexpr (Traits::kColumnParts > 1) {
      Tensor tdPrOthers = descriptors<typename Traits::OperandOthers>(
          of_all_blocks(smem.grad_o_others()));  // (MMA,MMA_N,MMA_K)
      gemm_async(typename Traits::MmaS{}, tdPrV, tdPrDO(_, _, _, at_dO().stage), tdPrOthers, acc_dP,
                 kEarlyDP);
    } else {
      gemm_async(typename Traits::MmaS{}, tdPrV, tdPrDO(_, _, _, at_dO().stage), acc_dP, kEarlyDP);
    }
  }

  // Where this warpgroup's columns begin in a block of Q or dO.
  CUTE_DEVICE int columns_dKV() const {
    return Traits::first_column_dKV(warpgroup) * Traits::kBlockM;
  }

  // dV += P^T dO
  CUTE_DEVICE void issue_dV(AccS const& acc_P) {
    if constexpr (!ScoresOfBlock::kMakesOperand) {
      convert_P<Element>(acc_P, tdVrP);
    }
    if constexpr (kFeatures.dropout) {
      dropped.apply_to_pairs(recast<uint32_t>(tdVrP));
    }
    device::at(Site::dV);
    Tensor tdVrDO = descriptors<typename Traits::OperandDOt>(
        staged<Traits::kStagesDO>(smem.grad_o + columns_dKV()));  // (MMA,MMA_N,MMA_K,kStagesDO)
    gemm_async(typename Traits::MmaDV{}, tdVrP, tdVrDO(_, _, _, at_dO().stage), acc_dV, true);
  }

  // dK += dS^T Q, but for the scale. Of shared memory, it is behind dQ of the same block, which waits for all of dS.
  CUTE_DEVICE void issue_dK(Position const& at) {
    device::at(Site::dK);
    Tensor tdKrQ = descriptors<typename Traits::OperandQt>(
        smem.q + columns_dKV());  // (MMA,MMA_N,MMA_K,kStages)
    if constexpr (Traits::kDKFromSmem) {
      Tensor tdKrDSt = descriptors<typename Traits::OperandDSt>(
          smem.ds + Traits::first_key(warpgroup) * kSlabDS);  // (MMA,MMA_M,MMA_K,kStagesDS)
      gemm_async(typename Traits::MmaDK{}, tdKrDSt(_, _, _, at_dS.stage), tdKrQ(_, _, _, at.stage),
                 acc_dK, true);
    } else {
      gemm_async(typename Traits::MmaDK{}, tdKrDS, tdKrQ(_, _, _, at.stage), acc_dK, true);
    }
  }

  // dQ = dS K of all keys of the tile, but for the scale
  CUTE_DEVICE void issue_dQ(AccDQ& acc_dQ) {
    device::at(Site::dQ);
    device::mbarrier_wait(smem.ds_ready[at_dS.stage], at_dS.parity);
    Tensor tdQrDS = descriptors<typename Traits::OperandDS>(
        staged<Traits::kStagesDS>(smem.ds + Traits::first_query_dQ(warpgroup) *
                                                Traits::kBlockN));  // (MMA,MMA_M,MMA_K,kStagesDS)
    Tensor tdQrK = descriptors<typename Traits::OperandKt>(of_all_blocks(
        smem.k + Traits::first_column_dQ(warpgroup) * Traits::kBlockN));  // (MMA,MMA_N,MMA_K)
    gemm_async(typename Traits::MmaDQ{}, tdQrDS(_, _, _, at_dS.stage), tdQrK, acc_dQ, false);
  }

  // What dropout drops of a block, beside the MMAs of S.
  // NOTE: for the branch the compiler draws here, not among the MMAs that were issued before.
  CUTE_DEVICE void draw_dropout(Blocks const& block) {
    if constexpr (kFeatures.dropout) {
      dropped = {};
      if (params.dropout.drops()) {
        scores.draw(dropped, params.dropout, block.head, block.m_block);
      }
    }
  }

  // S^T to P^T, in place and as an operand
  CUTE_DEVICE void exponentiate(AccS& acc_S, Blocks const& block) {
    if constexpr (kPacksSlopes) {
      scores.to_P_and_slopes(acc_S, tdVrP, slopes, numbers_of(smem.lse2, read), block);
    } else {
      scores.to_P(acc_S, tdVrP, numbers_of(smem.lse2, read), block);
    }
  }

  // dP^T to dS^T, in place, and as an operand
  CUTE_DEVICE void compute_dS(AccS const& acc_P, AccS& acc_dP, Blocks const& block) {
    if constexpr (variant::kHasSums<Variant>) {
      scores.to_dS_and_sums(acc_P, tdVrP, acc_dP, numbers_of(smem.minus_delta, at_dO()), block,
                            sums_captured(block));
    } else if constexpr (kFeatures.dropout) {
      dropped.apply_to_rows(rows_by_columns(acc_dP));
      scores.to_dS(acc_P, acc_dP, numbers_of(smem.minus_delta, at_dO()), params.dropout.factor);
    } else {
      scores.to_dS(acc_P, acc_dP, numbers_of(smem.minus_delta, at_dO()));
    }
    convert_P<Element>(acc_dP, tdKrDS);
  }

  // A number for each query of the block: this thread's columns of an accumulator are the first two of every eight from here.
  template <class At>
  CUTE_DEVICE static float const* numbers_of(float const* numbers, At const& at) {
    return numbers + at.stage * kBlockM + fresh_lane() % 4 * 2;
  }

  CUTE_DEVICE int row_of_dQ(Blocks const& block) const {
    return tile.sums_row(block.head, block.m_block * kBlockM);
  }
};

}  // namespace pyflash::sm90::backward
