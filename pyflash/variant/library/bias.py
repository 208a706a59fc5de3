"""A bias of each pair: bias[b, h, q, k]. Axes of stride 0 broadcast."""

from __future__ import annotations

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "torch.nn.functional.scaled_dot_product_attention"
TEXT = "bias(bias: f32[4]): s + bias[b, h, q, k]"


def example(problem: Problem) -> dict[str, object]:
    def row(b: int, h: int, q: int) -> list[float]:
        return [((b + 2 * h + 3 * q + 5 * k) % 7) / 4 for k in range(problem.k_len)]

    heads, queries = range(problem.heads), range(problem.q_len)
    found = [[[row(b, h, q) for q in queries] for h in heads] for b in range(problem.batch)]
    return {"bias": found}


def reference(at: Pair, bias: list[list[list[list[float]]]]) -> float | None:
    return at.s + bias[at.b][at.h][at.q][at.k]
