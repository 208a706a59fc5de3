"""Bugs for the emulator to find in the kernels of the SM90 backward."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.planted.backward_variants import OF_VARIANTS
from support.planted.planting import Bug, build_planted, condition, found, instead, without

from pyflash.config import FlashBackwardSm90Config

_KERNEL = "sm90/backward/backward_kernel.cuh"
_CONSUMER = "sm90/backward/consumer.h"
_OUTPUTS = "sm90/backward/outputs.h"
_CLUSTER = "sm90/backward/cluster_sums.h"
_LOAD = "sm90/backward/load.h"
_SCORES = "sm90/backward/scores.h"
_MASK = "sm90/backward/mask.h"
_PROBLEM = "common/backward_tile.h"
_BEFORE = "common/backward_preprocess.cuh"
_AFTER = "sm90/backward/postprocess.cuh"
_PIPELINE = "sm90/pipeline.h"
_SENDER = "sm90/backward/sender.h"
_EPILOGUE = "sm90/backward/epilogue.h"
_ROW_STORES = "sm90/row_stores.h"
_ROUND = "sm90/backward/round_sums.h"
_RECYCLED = "sm90/backward/recycled_sums.h"
_TILES = "sm90/backward/problem.h"
_PLAN = "sm90/backward/plan.h"

CONFIGS = {
    "overlap": FlashBackwardSm90Config.parse("(FP16, 128, 64, 128, 2): sm90_bwd+stages_2+overlap"),
    "in_turn": FlashBackwardSm90Config.parse("(BF16, 64, 128, 128, 2): sm90_bwd+stages_2"),
    "early": FlashBackwardSm90Config.parse("(BF16, 64, 128, 128, 2): sm90_bwd+stages_2+early_dP"),
    "slabs": FlashBackwardSm90Config.parse("(FP16, 96, 64, 128, 2): sm90_bwd+stages_4+overlap"),
    "parts": FlashBackwardSm90Config.parse("(FP16, 256, 64, 128, 2): sm90_bwd+stages_2+dQ_by_red"),
}
# The last ones have what the others have, but for slabs and parts of the columns.
ALL = ("overlap", "in_turn", "early")


def _bug(name: str, *edits, finds=(), problem: str = "ragged", configs=ALL) -> Bug:
    return Bug(name, edits, tuple(finds), configs=configs, problem=problem)


_UNREAD = "in_flight_read or uninitialised_read or race"

BUGS = [
    # dK and dV of a cluster.
    _bug(
        "parts_left_while_others_read_Q",
        without(
            "device::named_barrier_sync(kTailBarrier, Traits::kNConsumers * kWarpgroup);", _CLUSTER
        ),
        finds=[found("race", "part_r2s")],
        problem="cluster",
    ),
    _bug(
        "parts_not_waited_for",
        without("device::cluster_sync();  // the parts are visible", _CLUSTER),
        finds=[
            found("race or uninitialised_read or in_flight_read", "part_s2r", memory=None)
        ],
        problem="cluster",
    ),
    _bug(
        "a_CTA_ends_while_others_read",
        without(
            "device::cluster_sync();  // no CTA ends while others read its shared memory", _CLUSTER
        ),
        finds=[found("cta_ended", "part_s2r", memory="shared of another CTA")],
        problem="cluster",
    ),
    _bug(
        "a_part_of_the_wrong_slot",
        condition("values(sum, other);", "values(sum, BUG ? rank : other);", _CLUSTER),
        problem="cluster",
    ),
    _bug(
        "parts_added_once_too_often",
        condition("if (other == rank) {", "if (other == rank && !BUG) {", _CLUSTER),
        problem="cluster",
    ),
    _bug(
        "every_CTA_goes_through_the_same_heads",
        condition(
            "(head_kv * n_ctas + rank) * n_heads",
            "(head_kv * n_ctas + (BUG ? 0 : rank)) * n_heads",
            _PROBLEM,
        ),
        problem="cluster",
    ),
    # Sums of dQ that one head has after another.
    _bug(
        "sums_not_cleared",
        condition("clear_share(other);", "if (!BUG) { {original} }", _RECYCLED),
        problem="recycled",
    ),
    _bug(
        "a_part_of_the_sums_not_cleared",
        condition("int(share * n_parts / n_ctas())", "int(share * n_parts / n_ctas()) + BUG",
                  _RECYCLED),
        problem="recycled",
    ),
    _bug(
        "rounded_before_all_have_added",
        condition("float(n_ctas() - 1)", "float(n_ctas() - 1 - BUG)", _RECYCLED),
        problem="recycled",
    ),
    _bug(
        "counted_before_the_sums_are_complete",
        condition("if (fresh_lane() == 0) { device::tma_store_wait_written(); }",
                  "if (fresh_lane() == 0 && !BUG) { device::tma_store_wait_written(); }",
                  _RECYCLED),
        finds=[found("unordered_reduction", "dQ_s2g", memory="added")],
        problem="recycled",
    ),
    _bug(
        "the_count_not_waited_for",
        without("device::mbarrier_wait(smem.sums.counted, 0);", _RECYCLED),
        finds=[found("uninitialised_read or race", memory=None)],
        problem="recycled",
    ),
    _bug(
        "the_count_not_reset",
        condition("device::store(problem.added + i, 0.f);",
                  "device::store(problem.added + i, BUG ? -1.f : 0.f);", _BEFORE),
        problem="recycled",
    ),
    _bug(
        "rounded_into_the_head_before",
        condition("row - row_of_query_head >= problem.padded_q",
                  "row - row_of_query_head >= problem.padded_q + BUG * kStep", _RECYCLED),
        problem="recycled",
    ),
    _bug(
        "rounded_before_it_has_come",
        condition("device::async_wait<kStages - kAtATime>();",
                  "if (BUG) { device::async_wait<kStages>(); } else { {original} }", _RECYCLED),
        finds=[found("in_flight_read or uninitialised_read or race", memory=None)],
        problem="recycled",
    ),
    _bug(
        "sums_of_the_next_head",
        condition("params.problem.rows_before_sums(head)",
                  "params.problem.rows_before_sums(head - BUG)", _TILES),
        finds=[found("out_of_bounds", "dQ_s2g", memory="dq_sum")],
        problem="recycled",
    ),
    _bug(
        "the_last_heads_rounded_as_the_first",
        condition("problem.last_head_in(row / rows_of_head)",
                  "(BUG ? row / rows_of_head : problem.last_head_in(row / rows_of_head))", _AFTER),
        problem="recycled",
    ),
    # Blocks of Q and dO, and who has done with them.
    _bug(
        "Q_not_waited_for",
        condition("smem.pipeline_Q.wait(read);", "if (!BUG) { {original} }", _CONSUMER),
        finds=[found(_UNREAD, "QK")],
    ),
    _bug(
        "dO_not_waited_for",
        condition("smem.pipeline_dO.wait(at_dO());", "if (!BUG) { {original} }", _CONSUMER),
        finds=[found(_UNREAD, "dP")],
    ),
    _bug(
        "K_not_waited_for",
        without("smem.pipeline_K.wait({});", _CONSUMER),
        finds=[found(_UNREAD, "QK")],
    ),
    _bug(
        "V_not_waited_for",
        without("smem.pipeline_V.wait({});", _CONSUMER),
        finds=[found(_UNREAD, "dP")],
    ),
    _bug(
        "Q_released_before_dK_is_waited_for",
        condition("gemm_wait<0>(acc_dK); smem.pipeline_Q.release(read); read.advance();",
                  "if (BUG) { smem.pipeline_Q.release(read); gemm_wait<0>(acc_dK); } else {"
                  " gemm_wait<0>(acc_dK); smem.pipeline_Q.release(read); } read.advance();",
                  _CONSUMER),
        finds=[found("race", "Q_g2s", "dK")],
        configs=("in_turn", "early"),
        problem="many_blocks",
    ),
    _bug(
        "dO_released_before_dV_is_waited_for",
        condition("gemm_wait<1>(acc_dV); smem.pipeline_dO.release(before);",
                  "if (BUG) { smem.pipeline_dO.release(before); gemm_wait<1>(acc_dV); } else {"
                  " gemm_wait<1>(acc_dV); smem.pipeline_dO.release(before); }",
                  _CONSUMER),
        finds=[found("race", "dO_g2s", "dV")],
        configs=("overlap",),
        problem="many_blocks",
    ),
    _bug(
        "stages_filled_without_waiting_for_them",
        without("device::mbarrier_wait(empty[at.stage], at.parity ^ 1);", _PIPELINE),
        finds=[found("race or too_many_arrivals or in_flight_read", "Q_g2s", memory=None)],
        problem="many_blocks",
    ),
    _bug(
        "bytes_of_lse_not_announced",
        condition("acquire(write, kQueriesBytes)",
                  "acquire(write, kQueriesBytes - BUG * kNumberBytes)", _LOAD),
        finds=[found("wrong_expect_tx or deadlock", memory=None, detail="TMA brings")],
    ),
    # dS, which both consumers read.
    _bug(
        "dS_not_waited_for",
        without("device::mbarrier_wait(smem.ds_ready[at_dS.stage], at_dS.parity);", _CONSUMER),
        finds=[found(_UNREAD, "dQ")],
    ),
    _bug(
        "dS_without_a_proxy_fence",
        condition("make_dS_visible() { device::fence_async_proxy(); }",
                  "make_dS_visible() { if (!BUG) { device::fence_async_proxy(); } }",
                  _OUTPUTS),
        finds=[found("missing_proxy_fence", "dS_r2s")],
    ),
    _bug(
        "too_few_warps_awaited",
        condition("smem.ds_ready[stage], Traits::kNConsumerWarps",
                  "smem.ds_ready[stage], Traits::kNConsumerWarps - BUG", _KERNEL),
        finds=[found("race or too_many_arrivals or uninitialised_read or arrivals_left",
                     memory=None)],
    ),
    _bug(
        "one_stage_of_dS",
        condition("outputs.announce_dS(at_dS.stage); issue_dK(read);",
                  "outputs.announce_dS(BUG ? 0 : at_dS.stage); issue_dK(read);", _CONSUMER),
        finds=[found("race or deadlock or too_many_arrivals or wrong_phase", memory=None)],
        configs=("in_turn",),
        problem="many_blocks",
    ),
    # dP that starts at -delta.
    _bug(
        "minus_delta_not_waited_for",
        condition("wait_for_dO(block.m_block); scores.seed_dP(acc_dP,"
                  " numbers_of(smem.minus_delta, at_dO()));",
                  "if (BUG) { scores.seed_dP(acc_dP, numbers_of(smem.minus_delta, at_dO()));"
                  " wait_for_dO(block.m_block); } else { wait_for_dO(block.m_block);"
                  " scores.seed_dP(acc_dP, numbers_of(smem.minus_delta, at_dO())); }", _CONSUMER),
        finds=[found(_UNREAD, "lse_s2r")],
        configs=("early",),
    ),
    _bug(
        "minus_delta_of_the_wrong_query",
        condition("dP(r, c + 1) = of_queries.y;",
                  "dP(r, c + 1) = BUG ? of_queries.x : of_queries.y;", _SCORES),
        configs=("early",),
    ),
    _bug(
        "dS_before_dP_is_waited_for",
        condition("gemm_wait<2>(acc_dP); store_dS(acc_dP, block);",
                  "if (!BUG) { gemm_wait<2>(acc_dP); } store_dS(acc_dP, block);", _CONSUMER),
        finds=[found("register_in_flight", memory=None)],
        configs=("early",),
        problem="many_blocks",
    ),
    _bug(
        "P_of_another_query",
        condition("acc_dP(2 * i) *= P.x;", "acc_dP(2 * i) *= BUG ? P.y : P.x;", _SCORES),
        configs=("early",),
    ),
    _bug(
        "slopes_of_larger_small_scores",
        condition("device::less_square(of_P(i), device::pack2(tanh.x, tanh.y,",
                  "device::less_square(of_P(i), device::pack2((1 + 3 * BUG) * tanh.x, tanh.y,",
                  _SCORES),
        problem="small_scores",
        configs=("early",),
    ),
    _bug(
        "dS_announced_before_the_stage_before_is_read",
        condition("gemm_wait<1>(acc_dQ); outputs.announce_dS(at_dS.stage);",
                  "if (BUG) { outputs.announce_dS(at_dS.stage); gemm_wait<1>(acc_dQ); } else {"
                  " gemm_wait<1>(acc_dQ); outputs.announce_dS(at_dS.stage); }", _CONSUMER),
        finds=[found("race", "dS_r2s", "dQ")],
        configs=("early",),
        problem="many_blocks",
    ),
    _bug(
        "dO_released_before_dV_of_the_same_block_is_waited_for",
        condition("store_dS(acc_dP, block); gemm_wait<1>(acc_dV); smem.pipeline_dO.release(read);",
                  "store_dS(acc_dP, block); if (BUG) { smem.pipeline_dO.release(read);"
                  " gemm_wait<1>(acc_dV); } else { gemm_wait<1>(acc_dV);"
                  " smem.pipeline_dO.release(read); }", _CONSUMER),
        finds=[found("race", "dO_g2s", "dV")],
        configs=("early",),
        problem="many_blocks",
    ),
    # dQ on its way to the sums.
    _bug(
        "dQ_staged_before_the_last_is_read",
        condition("wait_for_sent_dQ(); CUTE_UNROLL",
                  "if (!BUG) { wait_for_sent_dQ(); } CUTE_UNROLL", _OUTPUTS),
        finds=[found("race or in_flight_read", "dQ_r2s")],
        problem="many_blocks",
    ),
    _bug(
        "dQ_without_a_proxy_fence",
        condition("return; } device::fence_async_proxy();",
                  "return; } if (!BUG) { device::fence_async_proxy(); }", _OUTPUTS),
        finds=[found("missing_proxy_fence", "dQ_s2g")],
    ),
    _bug(
        "dQ_never_committed",
        condition("device::tma_store_commit();", "if (!BUG) { {original} }", _OUTPUTS),
        finds=[found("copy_never_awaited or race", "dQ_s2g")],
    ),
    _bug(
        "dQ_to_the_next_block",
        condition("int64_t(uint32_t(row)) * Traits::kHeadDim / kWarpDQ +",
                  "int64_t(uint32_t(row + BUG * Traits::kBlockM)) * Traits::kHeadDim / kWarpDQ +",
                  _OUTPUTS),
        finds=[found("out_of_bounds", "dQ_s2g", memory="dq_sum")],
    ),
    _bug(
        "dK_stored_where_dQ_still_leaves",
        condition("sums.announce_added(); wait_for_sent_dQ();",
                  "sums.announce_added(); if (!BUG) { wait_for_sent_dQ(); }", _OUTPUTS),
        finds=[found("race or in_flight_read or copy_never_awaited", "dQ_s2g")],
    ),
    # Rows that exist, and what is computed of them.
    _bug(
        "rows_stored_past_the_last",
        condition("row < out.n_rows && column", "row < out.n_rows + BUG && column", _EPILOGUE),
        finds=[found("out_of_bounds", "rows_s2g", memory=None)],
    ),
    _bug(
        "columns_past_narrow_heads_stored",
        condition("&& column < out.n_columns,", "&& (BUG || column < out.n_columns),", _EPILOGUE),
        finds=[found("out_of_bounds or written_twice", "rows_s2g", memory=None)],
        problem="narrow_heads",
    ),
    _bug(
        "a_slab_stored_before_the_last_is_loaded",
        without("device::sync_warp();  // the slab is free", _ROW_STORES),
        finds=[found("race", "rows_r2s", "rows_s2g")],
        configs=("overlap",),
    ),
    _bug(
        "keys_past_the_end_count",
        condition("return first_key + Traits::kMmaM > tile.keys().length ||",
                  "return (!BUG && first_key + Traits::kMmaM > tile.keys().length) ||",
                  _MASK),
        problem="far_below",
    ),
    _bug(
        "the_diagonal_of_the_first_key",
        condition("m_block * Traits::kBlockM < uncut.begin ||",
                  "(!BUG && m_block * Traits::kBlockM < uncut.begin) ||", _MASK),
        problem="causal",
    ),
    _bug(
        "a_block_of_queries_too_few",
        condition("++m_block == tile.blocks.end", "++m_block == tile.blocks.end - BUG", _PROBLEM),
        problem="many_blocks",
    ),
    # Slabs that differ, and pieces of dQ that are several of them.
    _bug(
        "boxes_of_K_as_wide_as_those_of_V",
        condition("problem.k, slab_of_K(config)",
                  "problem.k, BUG ? slab_of_others(config) : slab_of_K(config)", _PLAN),
        finds=[found("wrong_expect_tx or deadlock or outside_tile or race", memory=None)],
        configs=("slabs",),
    ),
    _bug(
        "keys_counted_in_slabs_of_V",
        condition("smem.k + Traits::first_key(warpgroup) * Traits::kSlabK",
                  "smem.k + Traits::first_key(warpgroup) * (BUG ? Traits::kSlab : Traits::kSlabK)",
                  _CONSUMER),
        configs=("slabs",),
    ),
    _bug(
        "dQ_of_the_slab_before",
        condition("smem.k + Traits::first_column_dQ(warpgroup) * Traits::kBlockN",
                  "smem.k + (Traits::first_column_dQ(warpgroup)"
                  " - BUG * warpgroup * Traits::kSlabK) * Traits::kBlockN", _CONSUMER),
        configs=("slabs",),
    ),
    _bug(
        "columns_of_dV_from_the_next_slab",
        condition("return Traits::first_column_dKV(warpgroup) * Traits::kBlockM;",
                  "return (Traits::first_column_dKV(warpgroup) + BUG * Traits::kSlab)"
                  " * Traits::kBlockM;", _CONSUMER),
        finds=[found("outside_tile", memory="shared")],
        configs=("slabs",),
    ),
    _bug(
        "tails_of_K_in_slabs_of_V",
        condition("drop_tail_of_keys(smem.k, typename Traits::SmemLayoutK{}, n_keys);",
                  "if (BUG) { drop_tail_of_keys(smem.k, typename Traits::SmemLayoutV{}, n_keys); }"
                  " else { {original} }", _CONSUMER),
        configs=("slabs",),
        problem="packed_with_nan",
    ),
    _bug(
        "the_first_slab_of_each_piece_rounded",
        condition("slab % kSlabs * Piece::kVectors * 32",
                  "(BUG ? 0 : slab % kSlabs) * Piece::kVectors * 32", _ROUND),
        configs=("slabs",),
    ),
    _bug(
        "pieces_of_one_slab_recycled",
        condition("if (++slab == kSlabs) {", "if (++slab == kSlabs - BUG) {", _RECYCLED),
        configs=("slabs",),
        problem="recycled",
    ),
    # Turns of sums that are added from registers.
    _bug(
        "dQ_added_before_its_turn",
        condition("if constexpr (kFeatures.deterministic) { device::mbarrier_wait(",
                  "if constexpr (kFeatures.deterministic) if (!BUG) { device::mbarrier_wait(",
                  _OUTPUTS),
        finds=[found("unordered_reduction", "dQ_s2g", memory=None)],
        configs=("parts",),
        problem="deterministic",
    ),
    _bug(
        "a_warp_says_that_it_has_added_before_it_does",
        condition("auto* const sums = reinterpret_cast<float4*>(params.problem.dq_sum",
                  "if constexpr (kFeatures.deterministic) { if (BUG && fresh_lane() == 0) {"
                  " device::mbarrier_arrive("
                  "smem.dq_turns[warpgroup].by_warps[n_left % kSenders]); } } {original}",
                  _OUTPUTS),
        condition("// all lanes have added if (fresh_lane() == 0) {",
                  "// all lanes have added\n if (!BUG && fresh_lane() == 0) {", _OUTPUTS),
        finds=[found("unordered_reduction", "dQ_s2g", memory=None)],
        configs=("parts",),
        problem="deterministic",
    ),
    _bug(
        "every_part_takes_the_turn_of_the_first",
        condition("kSumsOfTurn + tile.column_part;", "kSumsOfTurn + (BUG ? 0 : tile.column_part);",
                  _SENDER),
        finds=[found("unordered_reduction", "dQ_s2g", memory=None)],
        configs=("parts",),
        problem="deterministic",
    ),
    _bug(
        "nobody_may_add",
        condition("device::mbarrier_arrive(turns[consumer].by_sender[sender]);",
                  "if (!BUG) { {original} }", _SENDER),
        finds=[found("deadlock", memory=None)],
        configs=("parts",),
        problem="deterministic",
    ),
    # One block of dO.
    _bug(
        "one_dO_released_before_dV_is_waited_for",
        condition("gemm_wait<1>(acc_dV); release_dO(); finish_block();",
                  "if (BUG) { release_dO(); gemm_wait<1>(acc_dV); } else { gemm_wait<1>(acc_dV);"
                  " release_dO(); } finish_block();", _CONSUMER),
        finds=[found("race", "dO_g2s", "dV")],
        configs=("parts", "in_turn"),
        problem="many_blocks",
    ),
    _bug(
        "minus_delta_in_the_stage_of_lse",
        condition("scores.to_dS(acc_P, acc_dP, numbers_of(smem.minus_delta, at_dO())); }",
                  "scores.to_dS(acc_P, acc_dP, BUG ? numbers_of(smem.minus_delta, read)"
                  " : numbers_of(smem.minus_delta, at_dO())); }", _CONSUMER),
        configs=("parts",),
        problem="many_blocks",
    ),
    # CTAs that have a part of the columns.
    _bug(
        "columns_of_the_other_part",
        condition("(column + tile.column_part * Traits::kOwnColumns)",
                  "(column + (BUG ? 0 : tile.column_part) * Traits::kOwnColumns)", _LOAD),
        configs=("parts",),
    ),
    _bug(
        "every_part_adds_to_dQ_of_the_first",
        condition("piece += tile.column_part * Traits::kNConsumers;",
                  "piece += BUG ? 0 : tile.column_part * Traits::kNConsumers;", _OUTPUTS),
        configs=("parts",),
    ),
    _bug(
        "every_part_stores_the_first_columns",
        condition("return tile.column_part * Traits::kOwnColumns + in_part;",
                  "return (BUG ? 0 : tile.column_part) * Traits::kOwnColumns + in_part;", _OUTPUTS),
        finds=[found("written_twice", "rows_s2g", memory=None)],
        configs=("parts",),
    ),
    _bug(
        "other_columns_of_Q_not_waited_for",
        condition("smem.parts.pipeline_Q.wait(at_dO());", "if (!BUG) { {original} }", _CONSUMER),
        finds=[found(_UNREAD, "QK")],
        configs=("parts",),
    ),
    _bug(
        "other_columns_of_dO_not_waited_for",
        condition("smem.parts.pipeline_dO.wait(at_dO());", "if (!BUG) { {original} }", _CONSUMER),
        finds=[found(_UNREAD, "dP")],
        configs=("parts",),
    ),
    _bug(
        "other_columns_of_Q_released_before_S_is_waited_for",
        condition("gemm_wait<1>(acc_S); release_others_of_Q();",
                  "if (BUG) { release_others_of_Q(); gemm_wait<1>(acc_S); } else {"
                  " gemm_wait<1>(acc_S); release_others_of_Q(); }", _CONSUMER),
        finds=[found("race", "Q_g2s", "QK")],
        configs=("parts",),
        problem="many_blocks",
    ),
    _bug(
        "other_columns_of_dO_released_before_dP_is_waited_for",
        condition("gemm_wait<1>(acc_dP); release_others_of_dO();",
                  "if (BUG) { release_others_of_dO(); gemm_wait<1>(acc_dP); } else {"
                  " gemm_wait<1>(acc_dP); release_others_of_dO(); }", _CONSUMER),
        finds=[found("race", "dO_g2s", "dP")],
        configs=("parts",),
        problem="many_blocks",
    ),
    _bug(
        "dS_stored_before_dQ_has_read_it",
        condition("device::mbarrier_wait(smem.parts.ds_read, parity);",
                  "if (!BUG) { {original} }", _OUTPUTS),
        finds=[found("race", "dS_r2s", "dQ")],
        configs=("parts",),
        problem="many_blocks",
    ),
    _bug(
        "dS_given_up_before_dQ_is_waited_for",
        condition("gemm_wait<0>(acc_dQ); outputs.release_dS();",
                  "if (BUG) { outputs.release_dS(); gemm_wait<0>(acc_dQ); } else {"
                  " gemm_wait<0>(acc_dQ); outputs.release_dS(); }", _CONSUMER),
        finds=[found("race", "dS_r2s", "dQ")],
        configs=("parts",),
        problem="many_blocks",
    ),
    _bug(
        "rows_stored_where_others_read_dS",
        condition("if (Traits::kRowsThroughDS) {  // nobody reads dS any more",
                  "if (Traits::kRowsThroughDS && !BUG) {", _OUTPUTS),
        finds=[found("race", "rows_r2s")],
        configs=("parts",),
        problem="many_blocks",
    ),
    # The kernels before and after.
    _bug(
        "sums_not_zeroed",
        condition("clear_sums<kColumns>(problem.sums_of(piece.row));", "if (!BUG) { {original} }",
                  _BEFORE),
        finds=[found("not_written", memory="dq_sum")],
    ),
    _bug(
        "queries_past_the_end_have_an_lse",
        condition("if (query < piece.queries.length) {",
                  "if (query < piece.queries.length + BUG) {",
                  _BEFORE),
        finds=[found("out_of_bounds", memory="lse")],
    ),
    _bug(
        "tiles_of_one_length_at_one_place",
        condition("(other == length && i < block)", "(!BUG && other == length && i < block)",
                  _BEFORE),
        finds=[found("not_written or written_twice or race", memory=None)],
        problem="packed",
    ),
    _bug(
        "the_order_of_another_block",
        condition("device::store(problem.order_of_keys + place, float(block));",
                  "device::store(problem.order_of_keys + place,"
                  " float(BUG ? larger(place, 1) : block));", _BEFORE),
        problem="packed",
    ),
    _bug(
        "rows_behind_the_last_sequence_not_zeroed",
        condition("int64_t(begin + sequences.total - end) * of_row",
                  "int64_t(begin + (BUG ? 0 : sequences.total - end)) * of_row", _BEFORE),
        problem="rows_of_none",
    ),
    _bug(
        "rows_behind_the_last_sequence_counted_from_it",
        condition("(row < begin ? row : row - begin + end) * strides.row",
                  "(row < begin || BUG ? row : row - begin + end) * strides.row", _BEFORE),
        problem="rows_of_none",
    ),
    _bug(
        "preprocess_does_not_wait_for_the_kernel_before",
        condition("device::wait_for_previous_kernel(); device::launch_dependents();"
                  " int const n_key_pieces",
                  "if (!BUG) { device::wait_for_previous_kernel(); } device::launch_dependents();"
                  " int const n_key_pieces", _BEFORE),
        finds=[found("before_previous_kernel_ended", memory=None)],
    ),
    _bug(
        "the_main_kernel_does_not_wait_for_preprocess",
        without("device::wait_for_previous_kernel();", _KERNEL),
        finds=[found("before_previous_kernel_ended", memory=None)],
    ),
    _bug(
        "postprocess_does_not_wait_for_the_main_kernel",
        without("device::wait_for_previous_kernel();", _AFTER),
        finds=[found("before_previous_kernel_ended", memory=None)],
    ),
    _bug(
        "a_sum_of_dQ_left_out",
        instead("acc_dQ(4 * i + 3) = values.w;", "acc_dQ(4 * i + 3) = values.z;", _ROUND),
    ),
]  # fmt: skip
BUGS += [
    _bug(name, *(edits if isinstance(edits, list) else [edits]), finds=finds, problem=problem)
    for name, edits, finds, problem in OF_VARIANTS
]


@pytest.fixture(scope="session")
def planted_libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build_planted(BUGS, CONFIGS, tmp_path_factory.mktemp("planted_backward"))
