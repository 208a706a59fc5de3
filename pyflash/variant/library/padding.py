"""Sequences of other lengths in one batch: lengths[b] keys of each count."""

from __future__ import annotations

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "Vaswani et al., arXiv 1706.03762"
TEXT = "padding(lengths: i32[1]): s where k < lengths[b]"


def example(problem: Problem) -> dict[str, object]:
    return {"lengths": [problem.k_len - 3 * b for b in range(problem.batch)]}


def reference(at: Pair, lengths: list[int]) -> float | None:
    return at.s if at.k < lengths[at.b] else None
