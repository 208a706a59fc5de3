"""A learned bias of each distance: table[h, d + reach], d = k - p kept between -reach and reach."""

from __future__ import annotations

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "Shaw et al., arXiv 1803.02155"
TEXT = (
    "relative_table(table: f32[2], reach: i32): "
    "s + table[h, clamp(k - q - k_len + q_len, -reach, reach) + reach]"
)


def example(problem: Problem) -> dict[str, object]:
    reach = 4
    table = [[(d * d - h) / 8 for d in range(2 * reach + 1)] for h in range(problem.heads)]
    return {"table": table, "reach": reach}


def reference(at: Pair, table: list[list[float]], reach: int) -> float | None:
    distance = min(max(at.k - at.position, -reach), reach)
    return at.s + table[at.h][distance + reach]
