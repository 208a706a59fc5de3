"""A window on both sides, and `first` tokens that attend all and that all attend."""

from __future__ import annotations

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "Beltagy et al., Longformer, arXiv 2004.05150"
TEXT = (
    "global_window(first: i32, reach: i32): s where "
    "(k < first) | (q + k_len - q_len < first) | (abs(q + k_len - q_len - k) <= reach)"
)


def example(problem: Problem) -> dict[str, object]:
    return {"first": 2, "reach": problem.k_len // 5}


def reference(at: Pair, first: int, reach: int) -> float | None:
    is_global = min(at.k, at.position) < first
    return at.s if is_global or abs(at.position - at.k) <= reach else None
