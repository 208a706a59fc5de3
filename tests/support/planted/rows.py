"""Bugs by which the rows of a warp have a part in what becomes of each other."""

from __future__ import annotations

from support.planted.planting import Bug, condition

_SOFTMAX = "sm90/forward/rowwise_softmax.h"
# On a GPU scores that are computed again differ from the MMA's, by rounding; here by more.
_ROUNDING = condition("scores[i];", "(BUG ? 1.1f : 1.f) * scores[i];", "sm90/forward/scores.h")

# No bug, but what shows some.
ROUNDING = Bug("scores_that_are_computed_again_differ", (_ROUNDING,))


def _bug(name: str, original: str, planted: str) -> Bug:
    return Bug(name, (condition(original, planted, _SOFTMAX), _ROUNDING))


BUGS = [
    _bug(
        "all_grow_where_one_does",
        "largest > Base::kLargeSum ?",
        "largest > (BUG ? 1.f : Base::kLargeSum) ?",
    ),
    _bug(
        "all_are_compared_where_one_is",
        "(rows >> r & 1) != 0 && block_max > limit(r)",
        "(BUG || (rows >> r & 1) != 0) && block_max > limit(r)",
    ),
    _bug(
        "those_that_overflowed_are_compared_again",
        "softmax.compare(rows, acc_S, correction); PerRow const sums_again",
        "softmax.compare(BUG ? softmax.overflowed : rows, acc_S, correction);"
        "PerRow const sums_again",
    ),
    _bug(
        "scores_of_all_are_those_computed_again",
        "if ((others >> r & 1) == 0) {",
        "if (!BUG && (others >> r & 1) == 0) {",
    ),
    _bug(
        "sums_of_all_are_those_computed_again",
        "(rows >> r & 1) != 0 ? sums_again(r)",
        "(BUG || (rows >> r & 1) != 0) ? sums_again(r)",
    ),
    _bug(
        "the_first_correction_is_lost",
        "limit(r) = fmaf(static_cast<float>(growth), inverse_scale_log2, limit(r));",
        "limit(r) = fmaf(static_cast<float>(growth), inverse_scale_log2, limit(r));"
        "correction(r) = BUG ? 1.f : correction(r);",
    ),
]
