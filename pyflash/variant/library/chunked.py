"""Chunked local attention: causal within chunks of `chunk` keys."""

from __future__ import annotations

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "Llama 4"
TEXT = (
    "chunked(chunk: i32): s where "
    "(k <= q + k_len - q_len) & (k // chunk == (q + k_len - q_len) // chunk)"
)


def example(problem: Problem) -> dict[str, object]:
    return {"chunk": 2 + problem.k_len // 4}


def reference(at: Pair, chunk: int) -> float | None:
    first = at.position - at.position % chunk
    return at.s if first <= at.k <= at.position else None
