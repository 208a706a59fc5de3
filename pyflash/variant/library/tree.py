"""Tree attention of speculative decoding: the queries are the last keys, nodes of a tree.

Bit j of ancestors[b, i] says whether node i attends node j, at most 64 of them. Every node attends
all keys before the tree.
"""

from __future__ import annotations

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "Miao et al., SpecInfer, arXiv 2305.09781"
TEXT = (
    "tree(ancestors: i64[2]): s where (k < k_len - q_len) "
    "| (ancestors[b, q] >> (k - k_len + q_len) & 1 == 1)"
)


def example(problem: Problem) -> dict[str, object]:
    # Node i is a child of node (i - 1) // 2, in the second sequence of node i - 1.
    rows = []
    for b in range(problem.batch):
        bits: list[int] = []
        for i in range(problem.q_len):
            parent = i - 1 if b else (i - 1) // 2
            bits.append(1 << i | (bits[parent] if i else 0))
        rows.append(bits)
    return {"ancestors": rows}


def reference(at: Pair, ancestors: list[list[int]]) -> float | None:
    node = at.k - (at.k_len - at.q_len)
    path = [j for j in range(64) if ancestors[at.b][at.q] & 1 << j]
    return at.s if node < 0 or node in path else None
