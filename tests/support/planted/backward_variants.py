"""Bugs for the emulator to find in what the SM90 backward does for packed sequences, softcap and
ALiBi: name, edit, what must be found, and the problem that shows it."""

from __future__ import annotations

from support.planted.planting import Edit, Found, condition, found, without

_OUTPUTS = "sm90/backward/outputs.h"
_SENDER = "sm90/backward/sender.h"
_BEFORE = "common/backward_preprocess.cuh"
_TAILS = "sm90/backward/tails.h"
_SCORES = "sm90/backward/scores.h"
_BLOCKED = "common/blocked_rows.h"
_PROBLEM = "common/backward_tile.h"
_GRADIENTS = "attention_gradients.h"

OF_VARIANTS: list[tuple[str, Edit | list[Edit], list[Found], str]] = [
    # Packed sequences: rows of the next one.
    (
        "tails_of_blocks_kept",
        condition("if (n_rows >= kRows) {", "if (BUG || n_rows >= kRows) {", _TAILS),
        [],
        "packed_with_nan",
    ),
    (
        "a_row_of_tails_kept",
        condition("int const first = max(n_rows, 0)", "int const first = max(n_rows + BUG, 0)",
                  _TAILS),
        [],
        "packed_with_nan",
    ),
    (
        "tails_without_a_proxy_fence",
        condition("kVector)), uint4{}); } device::fence_async_proxy();",
                  "kVector)), uint4{}); } if (!BUG) { device::fence_async_proxy(); }", _TAILS),
        [found("missing_proxy_fence", "tail_r2s")],
        "packed",
    ),
    (
        "tails_without_a_barrier",
        without("device::named_barrier_sync(kTailBarrier, kThreads);", _TAILS),
        [found("race", "tail_r2s")],
        "packed",
    ),
    (
        "sequences_share_blocks_of_the_workspace",
        condition("? (sequences.begin_of(sequence, load) + sequence * block) / block * block",
                  "? (sequences.begin_of(sequence, load) + (1 - BUG) * sequence * block)"
                  " / block * block", _BLOCKED),
        [],
        "packed",
    ),
    (
        "the_sequence_before",
        condition("if (begin_of(middle, load) <= row) {",
                  "if (begin_of(middle, load) < row + !BUG) {", _BLOCKED),
        [],
        "packed",
    ),
    (
        "dK_where_the_next_sequence_begins",
        condition("tile.keys().length - first_key,", "tile.keys().length + BUG - first_key,",
                  _OUTPUTS),
        [found("written_twice or race", memory=None)],
        "packed",
    ),
    (
        "dQ_of_the_first_sequence_for_all",
        condition("(queries.begin + query) * strides.row",
                  "((1 - BUG) * queries.begin + query) * strides.row", _BEFORE),
        [],
        "packed",
    ),
    # What becomes of scores.
    (
        "no_derivative_of_the_cap",
        condition("return {P.x * fmaf(-tanh.x, tanh.x, 1.f),",
                  "return {BUG ? P.x : P.x * fmaf(-tanh.x, tanh.x, 1.f),", _SCORES),
        [],
        "softcap",
    ),
    (
        "the_series_of_scores_that_are_not_small",
        condition("!(largest_of(S) <= largest)", "!(BUG || largest_of(S) <= largest)", _SCORES),
        [],
        "large_scores",
    ),
    (
        "small_scores_that_do_not_count",
        condition("return !mask.cuts(m_block) && !device::any_lane(",
                  "return (BUG || !mask.cuts(m_block)) && !device::any_lane(", _SCORES),
        [],
        "small_scores",
    ),
    (
        "masked_scores_have_a_tanh_of_infinity",
        condition("mask.apply(S, m_block, kMaskedTanh);",
                  "mask.apply(S, m_block, BUG ? -INFINITY : kMaskedTanh);", _SCORES),
        [],
        "softcap",
    ),
    (
        "P_of_dV_with_the_derivative",
        [condition("pairs(i) = device::pack2(capped.x,",
                   "pairs(i) = device::pack2(BUG ? capped.x * (1.f - tanh.x * tanh.x) : capped.x,",
                   _SCORES),
         condition("with_slopes(P, tanh); of_P(i) = device::pack2(P.x,",
                   "with_slopes(P, tanh); of_P(i) = device::pack2(BUG ? product.x : P.x,",
                   _SCORES)],
        [],
        "softcap",
    ),
    (
        "slopes_from_another_key",
        condition("mask.key(r) - first_query, column_of",
                  "mask.key(r) + BUG - first_query, column_of", _SCORES),
        [],
        "slopes",
    ),
    (
        "slopes_of_the_first_head",
        condition("tile.sequence(), head);", "tile.sequence(), BUG ? 0 : head);", _SCORES),
        [],
        "slopes",
    ),
    # Turns of deterministic sums.
    (
        "a_turn_not_given_on",
        condition("if (found == turn) {", "if (!BUG && found == turn) {", _SENDER),
        [found("deadlock", "dQ_s2g", memory="turns")],
        "deterministic",
    ),
    (
        "dQ_added_before_it_is_staged",
        without("device::mbarrier_wait(smem.dq_turns[consumer].by_warps[sender], parity);",
                _SENDER),
        [found("race or uninitialised_read or in_flight_read", "dQ_s2g", memory=None)],
        "deterministic",
    ),
    (
        "dQ_staged_while_it_is_sent",
        without("device::tma_store_wait<0>();", _SENDER),
        [found("race or in_flight_read", "dQ_r2s", memory=None)],
        "deterministic",
    ),
    (
        "a_turn_given_on_before_the_sums_are_written",
        without("device::tma_store_wait_written();", _SENDER),
        [found("unordered_reduction", "dQ_s2g", memory="turns")],
        "deterministic",
    ),
    (
        "a_consumers_dQ_added_twice",
        condition("sums + consumer * kValues,", "sums + (BUG ? 0 : consumer) * kValues,", _SENDER),
        [],
        "deterministic",
    ),
    (
        "tiles_against_the_order_of_turns",
        condition("if (kFeatures.deterministic && !params.problem.first_keys_first) {",
                  "if (kFeatures.deterministic &&"
                  " params.problem.first_keys_first == bool(BUG)) {",
                  "sm90/backward/problem.h"),
        [found("deadlock", "dQ_s2g", memory="turns")],
        "deterministic",
    ),
    (
        "the_first_turn_is_of_no_block",
        condition("blocks.begin : blocks.end - 1);",
                  "blocks.begin - BUG : blocks.end - 1 + BUG);",
                  _GRADIENTS),
        [found("deadlock", "dQ_s2g", memory="turns")],
        "deterministic",
    ),
]  # fmt: skip
