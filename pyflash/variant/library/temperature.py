"""A temperature of each head: s / temperature[h]."""

from __future__ import annotations

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "Learned temperatures, as arXiv 2111.09883 (Swin V2) has them"
TEXT = "temperature(temperature: f32[1]): s / temperature[h]"


def example(problem: Problem) -> dict[str, object]:
    return {"temperature": [0.5 + h for h in range(problem.heads)]}


def reference(at: Pair, temperature: list[float]) -> float | None:
    return at.s / temperature[at.h]
