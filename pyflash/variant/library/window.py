"""A window: at most `left` keys before the position of a query, and `right` after it."""

from __future__ import annotations

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "Beltagy et al., Longformer, arXiv 2004.05150"
TEXT = (
    "window(left: i32, right: i32): s where "
    "(q + k_len - q_len - k <= left) & (k - q - k_len + q_len <= right)"
)


def example(problem: Problem) -> dict[str, object]:
    return {"left": problem.k_len // 3, "right": 2}


def reference(at: Pair, left: int, right: int) -> float | None:
    return at.s if -left <= at.k - at.position <= right else None
