"""Neighborhood attention of an image of height x width, row by row: the `kernel` x `kernel` pixels
about a query, moved inside at the edges. `kernel` is odd.
"""

from __future__ import annotations

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "Hassani et al., arXiv 2204.07143"
TEXT = (
    "natten_2d(height: i32, width: i32, kernel: i32): s where "
    "(abs(clamp(q // width, kernel // 2, height - 1 - kernel // 2) - k // width) <= kernel // 2) "
    "& (abs(clamp(q % width, kernel // 2, width - 1 - kernel // 2) - k % width) <= kernel // 2)"
)


def example(problem: Problem) -> dict[str, object]:
    return {"height": problem.k_len // 3, "width": 3, "kernel": 3}


def reference(at: Pair, height: int, width: int, kernel: int) -> float | None:
    def near(query: int, key: int, extent: int) -> bool:
        first = min(max(query - kernel // 2, 0), extent - kernel)
        return first <= key < first + kernel

    rows = near(at.q // width, at.k // width, height)
    return at.s if rows and near(at.q % width, at.k % width, width) else None
