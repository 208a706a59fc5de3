"""The candidates of one problem: measurements so far, and which to try next."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from pyflash.config.fields import describe
from pyflash.op.selection import Problem
from pyflash.tuner import surrogate
from pyflash.tuner.builder import Kernel
from pyflash.tuner.journal import Record
from pyflash.tuner.model import Gpu, predict, split_counts
from pyflash.tuner.problems import problem_name, problem_to_json
from pyflash.ui.variants import AskedVariant

LAST_RUNG = 2
# The share of choices drawn at random from the better half, so that errors of the model show.
_EXPLORED = 0.2


@dataclass
class Standing:
    """A candidate's seconds per call, corrected by the anchor, in each rung that it has reached."""

    by_rung: dict[int, float] = field(default_factory=dict)
    spread: float = 0.0  # in the last of them: interquartile range over the median

    @property
    def rung(self) -> int:
        return max(self.by_rung)

    @property
    def seconds(self) -> float:
        """In the last one."""
        return self.by_rung[self.rung]


@dataclass
class Contest:
    """The candidates for one problem."""

    problem: Problem
    kernels: list[Kernel]
    gpu: Gpu
    rng: random.Random
    asked: AskedVariant | None = None
    standings: dict[Kernel, Standing] = field(default_factory=dict)
    failed: dict[Kernel, str] = field(default_factory=dict)
    n_samples: int = 0
    winner: Record | None = None

    def __post_init__(self) -> None:
        self.name = problem_name(self.problem, self.asked)
        self.json: dict[str, Any] = problem_to_json(self.problem)
        if self.asked:
            self.json |= self.asked.to_json()
        self.modelled = {k: predict(k.config, self.problem, self.gpu) for k in self.kernels}

    @property
    def tried(self) -> Collection[Kernel]:
        """A subset of `kernels`."""
        return (self.standings.keys() | self.failed.keys()) & self.modelled.keys()

    @property
    def measured(self) -> list[Kernel]:
        """A subset of `kernels`."""
        return [k for k in self.standings if k in self.modelled]

    def with_splits(self, kernel: Kernel) -> list[Kernel]:
        """The same with other numbers of splits than the rule's, where splits matter."""
        counts = split_counts(kernel.config, self.problem, self.gpu)
        splits = [dataclasses.replace(kernel, num_splits=n) for n in counts]
        return [k for k in splits if k not in self.failed]

    def ranking(self, rung: int | None = None) -> list[Kernel]:
        """The candidates that were measured, best first; with a rung, by the figures of that."""
        if rung is None:
            return sorted(self.standings, key=lambda k: self.standings[k].seconds)
        able = [k for k, standing in self.standings.items() if rung in standing.by_rung]
        return sorted(able, key=lambda k: self.standings[k].by_rung[rung])

    def next_choices(self, taken: Collection[Kernel]) -> list[Kernel]:
        """Those that are neither tried nor taken, in the order to try them: by the model, as
        corrected by what was measured, with some of the better half drawn at random. Before
        anything is measured, the best of each tile first."""
        model = self._surrogate()
        known = {*taken, *self.tried}
        rest = [k for k in self.kernels if k not in known]
        expected = {k: model.predict(k.config, self.modelled[k]) for k in rest}
        by_time = sorted(rest, key=expected.__getitem__)
        if not self.standings:
            by_time = _tiles_in_turn(by_time)
        return _shuffled_in(by_time, self.rng)

    def restore(self, record: Record, kernel: Kernel) -> None:
        """Adds a journal's record of a candidate."""
        if record["kind"] == "failed":
            self.failed[kernel] = record["reason"]
            self.standings.pop(kernel, None)
        else:
            self.n_samples += len(record["samples"])
            standing = self.standings.setdefault(kernel, Standing())
            standing.by_rung[record["rung"]] = record["seconds"]
            standing.spread = record["spread"]

    def _surrogate(self) -> surrogate.Surrogate:
        measured = self.measured
        ratios = [self.standings[k].seconds / self.modelled[k] for k in measured]
        return surrogate.fit([k.config for k in measured], ratios)


def _tiles_in_turn(ordered: list[Kernel]) -> list[Kernel]:
    """The first of each tile, in the order of these, then the second of each, and so on."""
    by_tile: dict[tuple[Any, ...], list[Kernel]] = {}
    for kernel in ordered:
        config_type = type(kernel.config)
        tile = (getattr(kernel.config, field.name) for field in describe(config_type).tile)
        by_tile.setdefault((config_type, *tile), []).append(kernel)
    turns = itertools.zip_longest(*by_tile.values())
    return [kernel for turn in turns for kernel in turn if kernel is not None]


def _shuffled_in(ordered: list[Kernel], rng: random.Random) -> list[Kernel]:
    """The same with some places given to random ones of the better half."""
    rest, result = list(ordered), []
    while rest:
        better = math.ceil(len(rest) / 2)
        at = rng.randrange(better) if rng.random() < _EXPLORED else 0
        result.append(rest.pop(at))
    return result
