"""A dilated window: the `width` keys at 0, 1, ... times `dilation` before the query's position."""

from __future__ import annotations

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "Beltagy et al., Longformer, arXiv 2004.05150"
TEXT = (
    "dilated(width: i32, dilation: i32): s where "
    "(k <= q + k_len - q_len) & (q + k_len - q_len - k < width * dilation) "
    "& ((q + k_len - q_len - k) % dilation == 0)"
)


def example(problem: Problem) -> dict[str, object]:
    return {"width": 3, "dilation": 1 + problem.heads}


def reference(at: Pair, width: int, dilation: int) -> float | None:
    attended = [at.position - dilation * step for step in range(width)]
    return at.s if at.k in attended else None
