"""Documents packed into a sequence: doc[b, i] is that of token i, and tokens attend their own."""

from __future__ import annotations

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "Krell et al., arXiv 2107.02027"
TEXT = "documents(doc: i32[2]): s where doc[b, q] == doc[b, k]"


def example(problem: Problem) -> dict[str, object]:
    length = max(problem.q_len, problem.k_len)
    return {"doc": [[i * (b + 2) // length for i in range(length)] for b in range(problem.batch)]}


def reference(at: Pair, doc: list[list[int]]) -> float | None:
    row = doc[at.b]
    return at.s if row[at.q] == row[at.k] else None
