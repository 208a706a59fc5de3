"""Causal attention: a query attends the keys up to its position. That of the last is the last."""

from __future__ import annotations

from pyflash.variant.pair import Pair

SOURCE = "Vaswani et al., arXiv 1706.03762"
TEXT = "causal: s where k <= q + k_len - q_len"


def reference(at: Pair) -> float | None:
    return at.s if at.k <= at.position else None
