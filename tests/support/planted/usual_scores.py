"""Bugs for the emulator to find in the way by which SM90 forward kernels make the scores of most
blocks of a variant."""

from __future__ import annotations

from support.planted.planting import Bug, condition, without

PLANTED = "planted(a: bf16[4], slope: f32[1]): s + a[b, h, q, k] + slope[h] * (k - q)"
LINE = "line(slope: f32[1]): s + slope[h] * (k - q)"

_USUAL = "sm90/forward/usual_scores.h"
_TILE = "sm90/forward/warpgroup_tile.h"


def _bug(name: str, *edits, problem: str = "all") -> Bug:
    return Bug(name, edits, problem=problem)


BUGS = [
    _bug("the_first_block_of_keys",
         condition("scores.first += first_key;", "scores.first += BUG ? 0 : first_key;",
                   _USUAL)),
    _bug("the_query_below",
         condition("(params, tile, first_query, 0);", "(params, tile, first_query + BUG, 0);",
                   _USUAL)),
    _bug("rows_of_no_tile",
         without("usual.begin(tile, first_query());", _TILE)),
    _bug("copies_not_waited_for", without("tiles.wait();", _USUAL)),
    _bug("the_block_that_is_read",
         condition("tiles.copy((n_block - 1) *", "tiles.copy((n_block - (BUG ? 0 : 1)) *", _USUAL)),
    _bug("no_copy_for_the_last_block",
         condition("n_block > first_block &&", "n_block > first_block + BUG &&", _USUAL)),
    _bug("rows_the_other_way_round",
         condition("of_tile.rows[0].row, of_tile.rows[1].row); } } hide",
                   "of_tile.rows[BUG].row, of_tile.rows[1 - BUG].row); } } hide", _USUAL)),
    _bug("not_made_again_after_an_overflow",
         condition("compute_again(acc_S, block); mask.cut_all(); } else {",
                   "if (!BUG) { compute_again(acc_S, block); } mask.cut_all(); } else {", _TILE),
         problem="late"),
]  # fmt: skip

# Of what exponents have in place of scores.
BUGS_OF_LINES = [
    _bug("the_scale",
         condition("{.scale = params.problem.softmax_scale * kLog2e};",
                   "{.scale = (BUG ? 1.f : params.problem.softmax_scale) * kLog2e};", _USUAL)),
    _bug("slopes_of_powers_of_e",
         condition("line.slope[r] = kLog2e *", "line.slope[r] = (BUG ? 1.f : kLog2e) *", _USUAL)),
    _bug("values_of_powers_of_e",
         condition("line.first[r] = kLog2e *", "line.first[r] = (BUG ? 1.f : kLog2e) *", _USUAL)),
    _bug("the_key_of_the_tile",
         condition("row.query, scores.first, 0);", "row.query, BUG ? 0 : scores.first, 0);",
                   _USUAL)),
    _bug("the_other_row",
         condition("float const at_first = first[r]",
                   "float const at_first = first[BUG ? 1 - r : r]", _USUAL)),
    _bug("m_is_left_out",
         condition("- m, step = slope[r];", "- (BUG ? 0.f : m), step = slope[r];", _USUAL),
         problem="late"),
    _bug("columns_without_gaps",
         condition("static_cast<float>(column_of(c)), step, at_first)",
                   "static_cast<float>(BUG ? c : column_of(c)), step, at_first)", _USUAL)),
    _bug("scores_that_have_it_already",
         condition("if constexpr (!Variant::kHasScore || kAddsLine) { return; }",
                   "if constexpr (!Variant::kHasScore) { return; } "
                   "else if (kAddsLine && !BUG) { return; }", _USUAL)),
]  # fmt: skip
