"""Branches after a prefix that they share: branch[i] is the branch of token i, causal within it."""

from __future__ import annotations

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "Juravsky et al., Hydragen, arXiv 2402.05099"
TEXT = (
    "shared_prefix(prefix: i32, branch: i32[1]): s where "
    "(k <= q + k_len - q_len) & ((k < prefix) | (branch[q] == branch[k]))"
)


def example(problem: Problem) -> dict[str, object]:
    length = max(problem.q_len, problem.k_len)
    return {"prefix": length // 3, "branch": [max(i - length // 3, 0) // 3 for i in range(length)]}


def reference(at: Pair, prefix: int, branch: list[int]) -> float | None:
    reachable = at.k < prefix or branch[at.q] == branch[at.k]
    return at.s if reachable and at.k <= at.position else None
