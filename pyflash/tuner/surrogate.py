"""Predicts the time of untried candidates from measured ones: a linear model of the logarithm of
time, with an effect for each value of each field and for each pair of values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from pyflash.config import KernelConfig

# Strength of the pull to 0 of an effect, in measurements. Effects of pairs need more to show.
_RIDGE, _RIDGE_OF_PAIRS = 0.3, 2.0
_MAX_EXPONENT = 3.0

Term = tuple[tuple[str, object], ...]  # one value of a field, or two


@dataclass(frozen=True)
class Surrogate:
    """exp(effects) times the time by the model of time."""

    effects: Mapping[Term, float]
    offset: float

    def predict(self, config: KernelConfig, modelled: float) -> float:
        """Seconds of a config that the model gives `modelled` seconds."""
        total = self.offset + sum(self.effects.get(term, 0.0) for term in _terms(config))
        return modelled * math.exp(max(-_MAX_EXPONENT, min(_MAX_EXPONENT, total)))


def fit(configs: Sequence[KernelConfig], ratios: Sequence[float]) -> Surrogate:
    """From configs that were measured and the ratios of their time to the model's, by ridge
    regression on the logarithms. Without any, every ratio is 1."""
    if not configs:
        return Surrogate({}, 0.0)
    terms = [_terms(config) for config in configs]
    columns = {term: i for i, term in enumerate(dict.fromkeys(itertools.chain(*terms)))}
    x = torch.zeros(len(configs), len(columns), dtype=torch.float64)
    for row, present in enumerate(terms):
        x[row, [columns[term] for term in present]] = 1
    logs = torch.tensor([math.log(ratio) for ratio in ratios], dtype=torch.float64)
    offset = logs.mean()
    ridge = torch.tensor([_RIDGE if len(term) == 1 else _RIDGE_OF_PAIRS for term in columns])
    # The dual form: as many equations as measurements, of which there are fewer than terms.
    scaled = x / ridge
    gram = scaled @ x.T + torch.eye(len(configs), dtype=torch.float64)
    effects = scaled.T @ torch.linalg.solve(gram, logs - offset)
    return Surrogate(dict(zip(columns, effects.tolist(), strict=True)), offset.item())


def _terms(config: KernelConfig) -> list[Term]:
    values = [(name, getattr(config, name)) for name in config.field_types()]
    singles: list[Term] = [(value,) for value in values]
    return singles + list(itertools.combinations(values, 2))
