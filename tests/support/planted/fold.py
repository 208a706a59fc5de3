"""Bugs for the emulator to find where a CTA folds the splits of its tiles."""

from __future__ import annotations

from support.planted.planting import Bug, condition, found, without

_FOLD = "sm90/forward/fold.h"
_ROW = "common/fold.h"
_PROBLEM = "sm90/forward/problem.h"


def _bug(name: str, *edits, finds=(), silent: bool = False) -> Bug:
    return Bug(name, edits, tuple(finds), silent=silent)


BUGS = [
    _bug(
        "the_fold_of_the_tile_before_goes_on",
        condition(
            "opens = split & FoldedSplit::kOpens,",
            "opens = !BUG && (split & FoldedSplit::kOpens),",
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
    _bug(
        "each_split_is_the_last",
        condition(
            "(begin > this->first_block ? 0",
            "(!BUG && begin > this->first_block ? 0",
            _PROBLEM,
        ),
        finds=[found("uninitialised_read", "part_s2r")],
    ),
    _bug(
        "a_split_of_one_block_more",
        condition("max(number * n_blocks,", "max(number * n_blocks - BUG,", _PROBLEM),
    ),
    _bug(
        "what_came_before_keeps_its_weight",
        condition(
            "Math::product(value_before, before)",
            "(BUG ? value_before : Math::product(value_before, before))",
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
