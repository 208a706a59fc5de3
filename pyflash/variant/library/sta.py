"""Sliding tile attention of a video: tokens are ordered by tiles of `tile` tokens, and the tiles of
a box of frames x rows x columns by frame, row and column. A tile attends the window of `t` x `y` x
`x` tiles about it, odd numbers, moved inside at the edges.
"""

from __future__ import annotations

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "Zhang et al., arXiv 2502.04507"
TEXT = (
    "sta(tile: i32, frames: i32, rows: i32, columns: i32, t: i32, y: i32, x: i32): s where "
    "(abs(clamp(q // tile // (rows * columns), t // 2, frames - 1 - t // 2) "
    "- k // tile // (rows * columns)) <= t // 2) "
    "& (abs(clamp(q // tile // columns % rows, y // 2, rows - 1 - y // 2) "
    "- k // tile // columns % rows) <= y // 2) "
    "& (abs(clamp(q // tile % columns, x // 2, columns - 1 - x // 2) "
    "- k // tile % columns) <= x // 2)"
)


def example(problem: Problem) -> dict[str, object]:
    shape = {"frames": 1, "rows": 2, "columns": 3}
    return {"tile": -(-problem.k_len // 6), **shape, "t": 1, "y": 1, "x": 3}


def reference(
    at: Pair, tile: int, frames: int, rows: int, columns: int, t: int, y: int, x: int
) -> float | None:
    def place(token: int) -> tuple[int, int, int]:
        frame, rest = divmod(token // tile, rows * columns)
        return frame, *divmod(rest, columns)

    def near(query: int, key: int, extent: int, size: int) -> bool:
        first = min(max(query - size // 2, 0), extent - size)
        return first <= key < first + size

    axes = zip(place(at.q), place(at.k), (frames, rows, columns), (t, y, x), strict=True)
    return at.s if all(near(*axis) for axis in axes) else None
