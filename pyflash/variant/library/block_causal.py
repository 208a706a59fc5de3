"""Blocks of `block` tokens that attend their own and all before: both ways within a block."""

from __future__ import annotations

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "Causal attention over frames, as video models have it"
TEXT = "block_causal(block: i32): s where k // block <= (q + k_len - q_len) // block"


def example(problem: Problem) -> dict[str, object]:
    return {"block": 2 + problem.k_len // 4}


def reference(at: Pair, block: int) -> float | None:
    end = (at.position // block + 1) * block
    return at.s if at.k < end else None
