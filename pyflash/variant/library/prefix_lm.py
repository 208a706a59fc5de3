"""A prefix that every query attends, and causal attention after it."""

from __future__ import annotations

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "Raffel et al., T5, arXiv 1910.10683"
TEXT = "prefix_lm(prefix: i32[1]): s where (k < prefix[b]) | (k <= q + k_len - q_len)"


def example(problem: Problem) -> dict[str, object]:
    return {"prefix": [problem.k_len * (b + 1) // 4 for b in range(problem.batch)]}


def reference(at: Pair, prefix: list[int]) -> float | None:
    in_prefix = at.k < prefix[at.b]
    return at.s if in_prefix or at.k <= at.position else None
