"""The spatial bias of graphs: weight[d, h] of the distance d = distance[b, q, k] of two nodes."""

from __future__ import annotations

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "Ying et al., arXiv 2106.05234"
TEXT = "graphormer(distance: i32[3], weight: f32[2]): s + weight[distance[b, q, k], h]"


def example(problem: Problem) -> dict[str, object]:
    def row(b: int, q: int) -> list[int]:
        return [min(abs(q - k) + b, 4) for k in range(problem.k_len)]

    distance = [[row(b, q) for q in range(problem.q_len)] for b in range(problem.batch)]
    weight = [[1 / (1 + d + h) for h in range(problem.heads)] for d in range(5)]
    return {"distance": distance, "weight": weight}


def reference(at: Pair, distance: list[list[list[int]]], weight: list[list[float]]) -> float | None:
    return at.s + weight[distance[at.b][at.q][at.k]][at.h]
