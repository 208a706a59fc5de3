"""ALiBi, causal: a bias that falls with the distance, slope[h] * (k - p) of a query at p."""

from __future__ import annotations

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "Press et al., arXiv 2108.12409"
TEXT = "alibi(slope: f32[1]): s + slope[h] * (k - q - k_len + q_len) where k <= q + k_len - q_len"


def example(problem: Problem) -> dict[str, object]:
    return {"slope": [2.0 ** (-8 * (h + 1) / problem.heads) for h in range(problem.heads)]}


def reference(at: Pair, slope: list[float]) -> float | None:
    return at.s - slope[at.h] * (at.position - at.k) if at.k <= at.position else None
