"""Bugs for the emulator to find in the kernels of the SM80 backward."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.planted.planting import Bug, build_planted, condition, found, without

from pyflash.config import FlashBackwardKernelConfig

_KERNEL = "sm80/backward/backward_kernel.cuh"
_SCORES = "sm80/backward/scores.h"
_SUMS = "sm80/backward/sums.h"
_PROBLEM = "sm80/backward/problem.h"
_AFTER = "sm80/backward/postprocess.cuh"
_BEFORE = "common/backward_preprocess.cuh"
_KEYS = "sm80/backward/key_sums.h"

# Each warp with keys of its own, and two stages; two warps with the same keys, and one stage; two
# warps with the same keys, of two tiles; the same with one barrier a block; d_heads that are no
# power of two: the columns of dQ do not deal out evenly.
CONFIGS = {
    "alone": FlashBackwardKernelConfig.parse("(BF16, 64, 64, 64, 4): sm80_bwd+stages_2"),
    "companions": FlashBackwardKernelConfig.parse("(FP16, 128, 32, 32, 4): sm80_bwd+stages_1"),
    "two_tiles": FlashBackwardKernelConfig.parse(
        "(BF16, 64, 64, 64, 4): sm80_bwd+stages_2+warp_keys_32"
    ),
    "one_barrier": FlashBackwardKernelConfig.parse(
        "(FP16, 64, 64, 64, 4): sm80_bwd+stages_3+warp_keys_32"
    ),
    "uneven": FlashBackwardKernelConfig.parse(
        "(BF16, 96, 64, 64, 4): sm80_bwd+stages_2+warp_keys_32"
    ),
    "uneven_wide": FlashBackwardKernelConfig.parse("(FP16, 192, 32, 64, 8): sm80_bwd+stages_1"),
}
ALL = tuple(CONFIGS)
TWO_BARRIERS = ("alone", "companions", "two_tiles", "uneven", "uneven_wide")
UNEVEN = ("uneven", "uneven_wide")


def _bug(name: str, *edits, finds=(), problem: str = "ragged", configs=ALL) -> Bug:
    return Bug(name, edits, tuple(finds), configs=configs, problem=problem)


_UNREAD = "in_flight_read or uninitialised_read or race"

BUGS = [
    # Copies and barriers.
    _bug(
        "a_block_not_waited_for",
        condition("every warp is done with the block before. device::async_wait<0>();",
                  "every warp is done with the block before.\n"
                  "if (!BUG) { device::async_wait<0>(); }", _KERNEL),
        finds=[found(_UNREAD, "K_s2r")],
        configs=TWO_BARRIERS,
    ),
    _bug(
        "a_block_not_visible_to_other_warps",
        condition("device::sync_threads(); if constexpr (Traits::kStages == 2) {",
                  "if (!BUG) { device::sync_threads(); } if constexpr (Traits::kStages == 2) {",
                  _KERNEL),
        finds=[found(_UNREAD, "Q_s2r")],
        configs=TWO_BARRIERS,
    ),
    _bug(
        "dS_not_waited_for",
        without("device::sync_threads();  // dS is visible, and P", _KERNEL),
        finds=[found(_UNREAD, "dS_s2r")],
    ),
    _bug(
        "a_stage_filled_while_it_is_read",
        without("device::sync_threads();  // every warp has read Q and dO, lse and delta", _KERNEL),
        finds=[found("race or in_flight_read", "Q_g2s")],
        configs=("companions",),
    ),
    _bug(
        "one_stage_of_two",
        condition("stage ^= 1;", "stage ^= 1 - BUG;", _KERNEL),
        configs=("alone",),
    ),
    _bug(
        "the_stage_that_is_read_is_filled",
        condition("load_ahead(stage ^ 1);", "load_ahead(stage ^ (1 - BUG));", _KERNEL),
        finds=[found("race or in_flight_read", "Q_g2s")],
        configs=("alone",),
    ),
    _bug(
        "a_block_ahead_not_waited_for",
        condition("device::async_wait<0>();  // for the next block",
                  "if (!BUG) { device::async_wait<0>(); }", _KERNEL),
        finds=[found(_UNREAD, "Q_s2r")],
        configs=("one_barrier",),
    ),
    _bug(
        "one_place_of_dS",
        condition("place ^= 1;", "place ^= 1 - BUG;", _KERNEL),
        finds=[found("race", "dS_r2s")],
        configs=("one_barrier",),
    ),
    _bug(
        "dK_stored_over_K_that_is_read",
        without("device::sync_threads();  // every warp has read K and V", _KERNEL),
        finds=[found("race", "rows_r2s")],
    ),
    _bug(
        "dK_leaves_before_it_is_visible",
        without("device::sync_threads();  // dK and dV are visible", _KERNEL),
        finds=[found("race", "rows_r2s", "rows_s2g")],
    ),
    # Rows and columns that exist.
    _bug(
        "a_key_past_the_last",
        condition("return {tile.keys().length - tile.first_key,",
                  "return {tile.keys().length - tile.first_key + BUG,", _KERNEL),
        finds=[found("out_of_bounds", "rows_s2g", memory=None)],
    ),
    _bug(
        "columns_past_narrow_heads",
        condition("tile.problem.d_head};", "tile.problem.d_head + 8 * BUG};", _KERNEL),
        finds=[found("out_of_bounds or written_twice", "rows_s2g", memory=None)],
        problem="narrow_heads",
    ),
    _bug(
        "a_query_past_the_last",
        condition("{tile.queries().length - query, problem.d_head}",
                  "{tile.queries().length - query + BUG, problem.d_head}", _KERNEL),
        finds=[found("out_of_bounds", "dO_g2s", memory=None)],
    ),
    _bug(
        "a_row_of_dQ_past_the_last",
        condition("piece.queries.length - piece.first_query",
                  "piece.queries.length - piece.first_query + BUG", _AFTER),
        finds=[found("out_of_bounds", memory="dq")],
    ),
    _bug(
        "a_block_of_queries_too_few",
        condition("blocks.end * kBlocks", "blocks.end * kBlocks - BUG", _PROBLEM),
        configs=("alone",),
    ),
    # Masks.
    _bug(
        "keys_past_the_end_count",
        condition("return warp_key + Traits::kWarpKeys > tile.keys().length ||",
                  "return (!BUG && warp_key + Traits::kWarpKeys > tile.keys().length) ||", _SCORES),
        problem="far_below",
    ),
    _bug(
        "the_diagonal_left_out",
        condition("m_block * Traits::kBlockM < uncut.begin ||",
                  "(!BUG && m_block * Traits::kBlockM < uncut.begin) ||", _SCORES),
        problem="causal",
    ),
    _bug(
        "the_left_window_left_out",
        condition("(kFeatures.left_window && (m_block",
                  "(!BUG && kFeatures.left_window && (m_block", _SCORES),
        problem="left_window",
    ),
    # Scores.
    _bug(
        "lse_in_place_of_delta",
        condition("(is_lse ? problem.lse2", "(is_lse || BUG ? problem.lse2", _KERNEL),
    ),
    _bug(
        "dK_not_scaled",
        condition("acc_dK(i) *= problem.softmax_scale;",
                  "acc_dK(i) *= BUG ? 1.f : problem.softmax_scale;", _KERNEL),
    ),
    _bug(
        "no_derivative_of_the_cap",
        condition("P(r, c) = p0 * (1.f - P(r, c)) * (1.f + P(r, c));",
                  "P(r, c) = p0 * (BUG ? 1.f : (1.f - P(r, c)) * (1.f + P(r, c)));", _SCORES),
        problem="softcap",
    ),
    _bug(
        "the_slope_of_another_head",
        condition("add_slopes(P, head, m_block);", "add_slopes(P, BUG ? 0 : head, m_block);",
                  _SCORES),
        problem="slopes",
    ),
    # Sums of dQ.
    _bug(
        "dQ_to_the_next_block",
        condition("block.m_block * kBlockM + query_dQ)",
                  "block.m_block * kBlockM + query_dQ + 64 * BUG)", _KERNEL),
        finds=[found("out_of_bounds", "dQ_s2g", memory="dq_sum")],
    ),
    _bug(
        "columns_of_dQ_past_the_last",
        condition("column >= kHeadDim", "column >= kHeadDim && !BUG", _KERNEL),
        finds=[found("out_of_bounds", "dQ_s2g", memory="dq_sum")],
        configs=UNEVEN,
    ),
    _bug(
        "columns_of_dK_of_the_other_companion",
        condition("return companion * (kTakesTurns", "return BUG ? 0 : companion * (kTakesTurns",
                  "sm80/backward/traits.h"),
        configs=UNEVEN,
    ),
    _bug(
        "even_columns_twice",
        condition("values + kLanes)", "values + (1 - BUG) * kLanes)", _AFTER),
    ),
    _bug(
        "a_turn_that_is_not_given_on",
        condition("if (in_turn) {", "if (in_turn && !BUG) {", _SUMS),
        finds=[found("deadlock", "dQ_s2g", memory="turns")],
        problem="deterministic",
    ),
    _bug(
        "tiles_against_the_order_of_turns",
        condition(
            "if (kFeatures.deterministic && !problem.first_keys_first) {",
            "if (kFeatures.deterministic && problem.first_keys_first == bool(BUG)) {",
            _PROBLEM,
        ),
        finds=[found("deadlock", "dQ_s2g", memory="turns")],
        problem="deterministic",
    ),
    _bug(
        "postprocess_does_not_wait_for_the_main_kernel",
        without("device::wait_for_previous_kernel();", _AFTER),
        finds=[found("before_previous_kernel_ended", memory=None)],
    ),
    # Sums of dK and dV.
    _bug(
        "sums_of_keys_that_do_not_start_at_0",
        condition("clear_sums<kColumns>(problem.dkv_sum",
                  "if (!BUG) clear_sums<kColumns>(problem.dkv_sum", _BEFORE),
        finds=[found("not_written", memory="dkv_sum")],
        problem="groups",
    ),
    _bug(
        "sums_of_keys_of_another_head",
        condition("problem.key_row(tile.batch, tile.head_kv,",
                  "problem.key_row(tile.batch, BUG ? 0 : tile.head_kv,", _KEYS),
        problem="groups",
    ),
    _bug(
        "dV_added_to_dK",
        condition("return of_dV ?", "return of_dV && !BUG ?", _KEYS),
        problem="groups",
    ),
    _bug(
        "dK_of_a_part_of_the_heads_stored",
        condition("if (ctas_of_group<kFeatures>(problem) > 1) {",
                  "if (ctas_of_group<kFeatures>(problem) > 1 && !BUG) {", _KERNEL),
        problem="groups",
    ),
    _bug(
        "the_first_heads_by_every_CTA",
        condition("tile.take_heads(part,", "tile.take_heads(BUG ? 0 : part,", _PROBLEM),
        problem="groups",
    ),
    _bug(
        "sums_of_dK_without_the_last_CTA",
        condition("key_sums.add(acc_dK, false);",
                  "if (!BUG || tile.first_head % 2 == 0) { key_sums.add(acc_dK, false); }",
                  _KERNEL),
        problem="groups",
    ),
    # Slices of heads.
    _bug(
        "tiles_of_the_first_slice_again",
        condition("head = head / n_parts + problem.first_head_of_slice;",
                  "head = head / n_parts + (BUG ? 0 : problem.first_head_of_slice);", _PROBLEM),
        finds=[found("out_of_bounds", "dQ_s2g", memory="dq_sum")],
        problem="slices",
    ),
    _bug(
        "queries_of_the_first_slice_again",
        condition("index += problem.first_slice_row() / kQueriesOfPiece;",
                  "index += BUG ? 0 : problem.first_slice_row() / kQueriesOfPiece;", _BEFORE),
        finds=[found("out_of_bounds", memory="lse2")],
        problem="slices",
    ),
    _bug(
        "sums_of_keys_of_the_first_slice_again",
        condition(".row = problem.first_key_row() + index",
                  ".row = (BUG ? 0 : problem.first_key_row()) + index", _KEYS),
        finds=[found("out_of_bounds", memory="dkv_sum")],
        problem="slices",
    ),
    _bug(
        "keys_of_the_first_slice_again",
        condition("int const head = problem.first_head_of_slice + of_both % n_heads;",
                  "int const head = (BUG ? 0 : problem.first_head_of_slice) + of_both % n_heads;",
                  _KEYS),
        problem="slices",
    ),
    _bug(
        "sums_of_keys_cleared_of_the_first_slice_alone",
        condition("int const row = problem.first_key_row() + device::block_idx()",
                  "int const row = (BUG ? 0 : problem.first_key_row()) + device::block_idx()",
                  _BEFORE),
        finds=[found("out_of_bounds", memory="dkv_sum")],
        problem="slices",
    ),
    _bug(
        "a_key_of_another_sequence",
        condition("tile.keys().length - tile.first_key, 1.f",
                  "tile.keys().length - tile.first_key + BUG, 1.f", _AFTER),
        finds=[found("out_of_bounds", memory="dk"), found("out_of_bounds", memory="dv")],
        problem="groups",
    ),
]  # fmt: skip


@pytest.fixture(scope="session")
def planted_libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build_planted(BUGS, CONFIGS, tmp_path_factory.mktemp("planted_backward_sm80"))
