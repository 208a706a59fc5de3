"""Block diffusion training: `length` noised tokens, then the same clean ones, in blocks of `block`.

A noised block attends itself and the clean blocks before it; a clean block itself and those before.
"""

from __future__ import annotations

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "Arriola et al., arXiv 2503.09573"
TEXT = (
    "block_diffusion(block: i32, length: i32): s where "
    "(k >= length) & (q >= length) & (k % length // block <= q % length // block) "
    "| (k >= length) & (q < length) & (k % length // block < q % length // block) "
    "| (k < length) & (q < length) & (k % length // block == q % length // block)"
)


def example(problem: Problem) -> dict[str, object]:
    return {"block": 2, "length": problem.k_len // 2}


def reference(at: Pair, block: int, length: int) -> float | None:
    clean_q, clean_k = at.q >= length, at.k >= length
    block_q, block_k = at.q % length // block, at.k % length // block
    if clean_k:
        shown = block_k <= block_q if clean_q else block_k < block_q
    else:
        shown = not clean_q and block_k == block_q
    return at.s if shown else None
