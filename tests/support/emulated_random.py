"""Random problems for the emulated kernels of op backward, and how each is run."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from support.emulated_backward import LIMITS, Call, Shape, make_call, wrong
from support.emulated_packed import Packed, PackedCall, make_packed_call, wrong_packed
from torch import Tensor

from pyflash.config import KernelConfig
from pyflash.emulator import ORDERS


@dataclass(frozen=True)
class Drawn:
    """A problem, and what else a run of it is asked for."""

    problem: Shape | Packed
    options: dict[str, Any]

    def make_call(self, config: KernelConfig) -> Call | PackedCall:
        make = make_packed_call if isinstance(self.problem, Packed) else make_call
        return make(config, self.problem)

    def wrong(
        self, config: KernelConfig, call: Call | PackedCall, gradients: tuple[Tensor, ...]
    ) -> dict[str, float]:
        """The relative errors that exceed their limit; what is 0 has none."""
        if isinstance(call, PackedCall):
            errors = wrong_packed(call, gradients, LIMITS[config.dtype])
        else:
            errors = wrong(config, self.problem, call, gradients)
        zeros = {n for n, x in zip(("dq", "dk", "dv"), call.exact, strict=True) if not x.any()}
        return {name: error for name, error in errors.items() if name not in zeros}


def draw(seed: int) -> Drawn:
    rng = random.Random(seed)
    batch, heads_kv, group = rng.choice((1, 1, 2)), rng.choice((1, 1, 2)), rng.choice((1, 2, 4))
    heads, narrower_by = heads_kv * group, rng.choice((0, 0, 8, 24))
    options = {**_mask(rng), **_scores(rng, heads)}
    if rng.random() < 0.4:
        options["softmax_scale"] = rng.choice((0.01, 0.1, 0.3))
    if rng.random() < 0.5:
        lengths = [[rng.choice((0, 1, 63, 65, rng.randint(2, 110))) for _ in "abc"] for _ in "qk"]
        lengths_q, lengths_k = ((rng.randint(20, 90), *x) for x in lengths)
        problem = Packed(heads, heads_kv, lengths_q, lengths_k, narrower_by, options)
    else:
        seqlens = (rng.choice((1, 64, 129, rng.randint(2, 200))) for _ in "qk")
        problem = Shape(batch, heads, heads_kv, *seqlens, narrower_by, options)
    asked = {
        "order": rng.choice(ORDERS),
        "seed": seed,
        "deterministic": rng.random() < 0.5,
        "resident_ctas": rng.choice((1, 7, 132)),
    }
    return Drawn(problem, {**options, **asked})


def _mask(rng: random.Random) -> dict[str, Any]:
    window = rng.choice((0, 5, 64, rng.randint(1, 150)))
    return rng.choice(
        (
            {},
            {"causal": True},
            {"causal": True, "window_left": window},
            {"window_left": window, "window_right": rng.randint(0, 70)},
            {"window_right": window},
            {"attention_chunk": 1 + window},
        )
    )


def _scores(rng: random.Random, heads: int) -> dict[str, Any]:
    slopes = torch.tensor([rng.random() for _ in range(heads)])
    return rng.choice(({}, {"softcap": rng.choice((0.5, 2.0, 30.0))}, {"alibi_slopes": slopes}))
