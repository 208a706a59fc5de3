"""Scores that stay between -cap and cap: cap * tanh(s / cap)."""

from __future__ import annotations

import math

from pyflash.variant.pair import Pair
from pyflash.variant.tiles import Problem

SOURCE = "Gemma 2, arXiv 2408.00118"
TEXT = "softcap(cap: f32): cap * tanh(s / cap)"


def example(problem: Problem) -> dict[str, object]:
    return {"cap": 3.0 + problem.heads}


def reference(at: Pair, cap: float) -> float | None:
    return cap * math.tanh(at.s / cap)
