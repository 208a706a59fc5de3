"""Bugs for the emulator to find where a CTA folds the splits of its tiles."""

from __future__ import annotations

from support.planted.planting import Bug, condition, found, without

_CONSUMER = "sm90/forward/consumer.h"
_FOLD = "sm90/forward/fold.h"
_ROW = "common/fold.h"
_PROBLEM = "sm90/forward/problem.h"


def _bug(name: str, *edits, finds=(), silent: bool = False) -> Bug:
    return Bug(name, edits, tuple(finds), silent=silent)


BUGS = [
    _bug(
        "rows_go_on_where_nothing_came_before",
        condition(
            "if (goes_on) { device::at(device::Site::part_s2r); thread.load_rows(rows);",
            "if (goes_on || BUG) { device::at(device::Site::part_s2r); thread.load_rows(rows);",
            _FOLD,
        ),
        finds=[found("uninitialised_read", "part_s2r")],
    ),
    _bug(
        "O_leaves_through_what_is_still_read",
        without(
            "device::sync_warp();  // O of other lanes leaves through what this one has read", _FOLD
        ),
        finds=[found("race", "part_s2r", "O_r2s")],
        silent=True,
    ),
    _bug(
        "rows_stored_while_others_read_them",
        without("device::sync_warp();  // what was there has been read", _FOLD),
        finds=[found("race", "part_s2r", "part_r2s")],
        silent=True,
    ),
    _bug("a_split_begins_anew", without("is_folded = true;", _CONSUMER)),
    _bug(
        "a_split_of_one_block_more",
        condition("n_block % kBlocks == 0", "n_block % kBlocks == BUG", _PROBLEM),
    ),
    _bug(
        "O_of_one_split_and_sums_of_the_next",
        condition(
            "fold<false>(now.tile, ended,",
            "fold<false>(now.tile, BUG ? now.softmax : ended,",
            _CONSUMER,
        ),
    ),
    _bug(
        "PV_onto_the_split_before",
        condition(
            "convert_P<Element>(acc_S, gemms.tOrP); accumulate = false;",
            "convert_P<Element>(acc_S, gemms.tOrP); accumulate = BUG;",
            _CONSUMER,
        ),
    ),
    _bug(
        "what_came_before_keeps_its_weight",
        condition(
            "Math::product(counted_before, before)",
            "(BUG ? counted_before : Math::product(counted_before, before))",
            _ROW,
        ),
    ),
    _bug(
        "the_sum_keeps_its_weight",
        condition("fma(sum, weights.before,", "fma(sum, BUG ? 1 : weights.before,", _ROW),
    ),
    _bug(
        "sinks_are_left_out",
        condition("finish(kSinks ? sinks(r)", "finish(kSinks && !BUG ? sinks(r)", _FOLD),
    ),
]
