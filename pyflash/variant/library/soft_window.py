"""A window with a slope for an edge, causal: slope[h] less for each key further than `reach`."""

from __future__ import annotations

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "ALiBi beyond a distance: Press et al., arXiv 2108.12409"
TEXT = (
    "soft_window(slope: f32[1], reach: i32): "
    "s - slope[h] * max(q + k_len - q_len - k - reach, 0) where k <= q + k_len - q_len"
)


def example(problem: Problem) -> dict[str, object]:
    return {"slope": [0.5 / (h + 1) for h in range(problem.heads)], "reach": problem.k_len // 3}


def reference(at: Pair, slope: list[float], reach: int) -> float | None:
    beyond = at.position - at.k - reach
    if at.k > at.position:
        return None
    return at.s - slope[at.h] * beyond if beyond > 0 else at.s
