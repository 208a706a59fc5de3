"""The costs of a tuned table: what a launch, a tile, a step and memory cost a config, fitted to the
times of many problems. The model of time is in cute_kernels/host/expected_time.h."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from pyflash.config import DType, KernelConfig, parse
from pyflash.op.selection import Problem, class_of, expected_microseconds
from pyflash.op.tables import COSTS
from pyflash.tuner.audit import GOOD
from pyflash.tuner.journal import Record
from pyflash.tuner.least_squares import least_squares
from pyflash.tuner.problems import parse_problem

# A config with fewer problems has no costs.
LEAST_PROBLEMS = 4
# Where the fit starts.
_START = {
    "launch": 3.0, "tile": 2.0, "step": 0.8, "share": 0.7, "rows": 0.5, "mask": 0.4, "capped": 1.3,
    "megabyte": 0.2, "merge": 2.0, "split": 0.06, "partial": 0.3,
}  # fmt: skip
_SHARES = ("share", "rows")  # at most 1
# Costs are fitted to ranking, not to absolute time: an error that all configs share at a problem
# does not count, and a config counts less the slower it is there, by e for each such share of the
# least time.
_NEAR = 0.2
_LEAST_WEIGHT = 0.02
_JOINT_ROUNDS = 3  # of fits, each with the errors that all configs share


@dataclass(frozen=True, slots=True)
class Observation:
    name: str
    problem: Problem
    seconds: float
    weight: float = 1.0


Costs = dict[str, float]
Kernel = tuple[KernelConfig, str]  # a config, and the kind of problems
Fits = dict[Kernel, tuple[Costs, float, int]]


def costs_of(
    records: Sequence[Record], sm: int, n_sms: int
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """(rows, judgements by kind): a row for each config and kind of problem with enough problems,
    of the kinds that are kept.

    A kind is kept where costs that are fitted to half of the audited problems choose a good config
    (`GOOD`) for the other half at least as often as selection did when they were measured. Configs
    that the latest audit did not measure are no longer built, and their times are left out.
    """
    records = of_built(records)
    observations = observations_of(records)
    fits = fit_all(observations, sm, n_sms)
    audits = [record for record in records if record["kind"] == "audit" and "ratio" in record]
    judgements = _judge(audits, sm, n_sms)
    rows = [
        {
            "config": str(config.replace(dtype=dtype)),
            "kind": kind,
            **{name: round(value, 5) for name, value in costs.items()},
            "problems": n_problems,
            "error": round(error, 4),
        }
        for (config, kind), (costs, error, n_problems) in sorted(fits.items(), key=lambda x: x[0])
        if kind in judgements and judgements[kind]["kept"]
        for dtype in DType
    ]
    return rows, judgements


def of_built(records: Sequence[Record]) -> list[Record]:
    """The records with the times of those configs alone that the latest audit measured, of any
    dtype and d_head; all of them where there is no audit."""
    latest: set[str] = set()
    for record in records:
        if record["kind"] == "run" and record["what"] == "audit":
            latest = set()
        elif record["kind"] == "audit":
            latest |= set(record.get("seconds", ()))
    if not latest:
        return list(records)
    built = {parse(config).replace(dtype=DType.BF16) for config in latest}

    def kept(seconds: dict[str, float]) -> dict[str, float]:
        of_bf16 = {config: parse(config).replace(dtype=DType.BF16) for config in seconds}
        return {config: value for config, value in seconds.items() if of_bf16[config] in built}

    return [
        record | {"seconds": kept(record["seconds"])}
        if record["kind"] == "audit" and "ratio" in record
        else record
        for record in records
    ]


def observations_of(records: Iterable[Record]) -> dict[KernelConfig, list[Observation]]:
    """The times of each config, of audits and of tuning; of an audit's only those that compete:
    of the smallest d_head. None with a variant. With as many splits as the record has, or as the
    rule chooses."""
    found: dict[KernelConfig, dict[str, Observation]] = {}

    def add(config: KernelConfig, name: str, problem: Problem, seconds: float) -> None:
        found.setdefault(config, {})[name] = Observation(name, problem, seconds)

    for record in records:
        if record.get("variant"):
            continue
        if record["kind"] == "sample" and not record.get("num_splits"):
            name = record["problem"]
            add(parse(record["config"]), name, parse_problem(name), record["seconds"])
        elif record["kind"] == "audit":
            problem = parse_problem(record["name"])
            for config, seconds in competing(record).items():
                add(config, record["name"], _as_measured(record, problem, config), seconds)
    return {config: list(of.values()) for config, of in found.items()}


def _as_measured(audit: Record, problem: Problem, config: KernelConfig) -> Problem:
    """With the config's splits of then."""
    num_splits = audit.get("splits", {}).get(str(config), 0)
    return replace(problem, options=problem.options | {"num_splits": num_splits})


def competing(audit: Record) -> dict[KernelConfig, float]:
    """The seconds of the configs among which selection chooses: those of the smallest d_head."""
    seconds = {parse(config): value for config, value in audit.get("seconds", {}).items()}
    d_head = min((config.d_head for config in seconds), default=0)
    return {config: value for config, value in seconds.items() if config.d_head == d_head}


def fit_all(observations: dict[KernelConfig, list[Observation]], sm: int, n_sms: int) -> Fits:
    """For each config, as of BF16, and kind of problem with enough of them (costs, error, number of
    problems). Both dtypes have the same costs: their instructions take as long."""
    by_kernel: dict[Kernel, list[Observation]] = defaultdict(list)
    for config, found in observations.items():
        for observation in found:
            key = (config.replace(dtype=DType.BF16), class_of(observation.problem).kind)
            by_kernel[key].append(observation)
    by_kernel = {key: found for key, found in by_kernel.items() if len(found) >= LEAST_PROBLEMS}
    by_kernel = _weighted(by_kernel)
    points: dict[Kernel, list[float]] = {}
    errors: dict[Kernel, list[float]] = {}
    common: dict[str, float] = defaultdict(float)
    for _ in range(_JOINT_ROUNDS):
        of_problem: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for key, found in by_kernel.items():
            fit = _Fit(key[0], found, common, sm, n_sms)
            points[key] = fit.run(points.get(key))
            (errors[key],) = fit.errors([points[key]])
            for observation, error in zip(found, errors[key], strict=True):
                of_problem[observation.name].append((error, observation.weight))
        for name, weighted in of_problem.items():
            common[name] = sum(e * w for e, w in weighted) / sum(w for _, w in weighted)
    return {
        key: (
            _costs_at(point),
            median(abs(math.expm1(error)) for error in errors[key]),
            len(errors[key]),
        )
        for key, point in points.items()
    }


def _judge(audits: list[Record], sm: int, n_sms: int) -> dict[str, dict[str, Any]]:
    """By kind: how well costs choose for problems that they were not fitted to."""
    halves = (audits[::2], audits[1::2])
    ratios: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for train, test in (halves, halves[::-1]):
        fits = fit_all(observations_of(train), sm, n_sms)
        for record in test:
            problem = parse_problem(record["name"])
            ratio = ratio_of_choice(record, problem, fits, sm, n_sms)
            ratios[class_of(problem).kind].append((ratio, record["ratio"]))
    judgements = {}
    for kind, pairs in ratios.items():
        columns = list(zip(*pairs, strict=True))
        held_out, selected = (math.exp(sum(map(math.log, of)) / len(of)) for of in columns)
        held_out_good, selected_good = (sum(r <= GOOD for r in of) for of in columns)
        judgements[kind] = {
            "problems": len(pairs),
            "held_out": round(held_out, 4),
            "selected": round(selected, 4),
            "held_out_good": held_out_good,
            "selected_good": selected_good,
            "kept": held_out_good >= selected_good,
        }
    return judgements


def ratio_of_choice(record: Record, problem: Problem, fits: Fits, sm: int, n_sms: int) -> float:
    """The time of the config that these costs choose over that of the best, all with their splits
    of then; that of what was selected where they do not decide. As least_expected in
    cute_kernels/host/rules.cpp."""
    kind = class_of(problem).kind
    expected = {}
    for config in competing(record):
        if known := fits.get((config.replace(dtype=DType.BF16), kind)):
            as_measured = _as_measured(record, problem, config)
            (expected[config],) = expected_microseconds(as_measured, config, sm, n_sms, [known[0]])
    if parse(record["selected"]) not in expected:
        return record["ratio"]
    choice = min(expected, key=expected.__getitem__)
    return record["seconds"][str(choice)] / min(record["seconds"].values())


def _weighted(by_kernel: dict[Kernel, list[Observation]]) -> dict[Kernel, list[Observation]]:
    """The same with each observation's weight, by how it compares with the best of its problem."""
    least: dict[str, float] = {}
    for observation in (o for found in by_kernel.values() for o in found):
        least[observation.name] = min(observation.seconds, least.get(observation.name, math.inf))

    def weight(observation: Observation) -> float:
        slower = observation.seconds / least[observation.name] - 1
        return max(math.exp(-slower / _NEAR), _LEAST_WEIGHT)

    return {k: [replace(o, weight=weight(o)) for o in found] for k, found in by_kernel.items()}


@dataclass(frozen=True, slots=True)
class _Fit:
    """Fits one config's costs to its times, `common` errors by problem left out."""

    config: KernelConfig
    observations: Sequence[Observation]
    common: dict[str, float]
    sm: int
    n_sms: int

    def errors(self, points: Sequence[Sequence[float]]) -> list[list[float]]:
        """For each point the logarithms of expected over measured times."""
        costs = [_costs_at(point) for point in points]
        by_observation = [
            [
                math.log(expected / (o.seconds * 1e6))
                for expected in expected_microseconds(
                    o.problem, self.config, self.sm, self.n_sms, costs
                )
            ]
            for o in self.observations
        ]
        return [list(of_point) for of_point in zip(*by_observation, strict=True)]

    def run(self, start: Sequence[float] | None) -> list[float]:
        """The costs with the least errors, held to the start where the problems do not determine
        them."""
        if start is None:
            start = [math.log(_START[name]) for name in COSTS]
            # Scales the step first, by the ratio of all times.
            start[COSTS.index("step")] -= median(self.errors([start])[0])

        def weighted(points: Sequence[Sequence[float]]) -> list[list[float]]:
            return [
                [
                    (error - self.common[o.name]) * math.sqrt(o.weight)
                    for o, error in zip(self.observations, of_point, strict=True)
                ]
                for of_point in self.errors(points)
            ]

        return least_squares(weighted, start)


def _costs_at(point: Sequence[float]) -> Costs:
    costs = {name: math.exp(x) for name, x in zip(COSTS, point, strict=True)}
    return costs | {name: min(costs[name], 1.0) for name in _SHARES}
