"""Sandwich, causal: slope[h] * wave[d] of the distance d = p - k, where wave[d] is the sum of
cos(d / 10000^(2i / width)) over the width / 2 frequencies i, less its value at 0.
"""

from __future__ import annotations

import math

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "Chi et al., arXiv 2212.10356"
TEXT = (
    "sandwich(wave: f32[1], slope: f32[1]): "
    "s + slope[h] * wave[q + k_len - q_len - k] where k <= q + k_len - q_len"
)
WIDTH = 16


def _wave(distance: int) -> float:
    waves = (math.cos(distance / 10000 ** (2 * i / WIDTH)) for i in range(WIDTH // 2))
    return sum(waves) - WIDTH / 2


def example(problem: Problem) -> dict[str, object]:
    wave = [_wave(d) for d in range(problem.k_len)]
    return {"wave": wave, "slope": [8 / (h + 1) for h in range(problem.heads)]}


def reference(at: Pair, wave: list[float], slope: list[float]) -> float | None:
    if at.k > at.position:
        return None
    return at.s + slope[at.h] * _wave(at.position - at.k)
