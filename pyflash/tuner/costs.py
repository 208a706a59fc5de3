"""The costs of a tuned table: what a launch, a tile and a step of a config take, fitted to the
times of many problems. The model of time is in cute_kernels/host/tuned.h."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from pyflash.config import DType, KernelConfig, parse
from pyflash.op.selection import Problem, class_of, expected_microseconds
from pyflash.tuner.journal import Record
from pyflash.tuner.problems import parse_problem

# Fewer problems tell nothing of a config.
LEAST_PROBLEMS = 4
# Where the fit starts, in microseconds; and how strongly it is held there, in problems.
_START = {"launch": 4.0, "tile": 3.0, "step": 1.0, "share": 0.6}
_PULL = 0.01
_ROUNDS = 600


@dataclass(frozen=True, slots=True)
class Observation:
    problem: Problem
    seconds: float


Costs = dict[str, float]
Fits = dict[tuple[KernelConfig, str], tuple[Costs, float, int]]  # by config and kind


def costs_of(
    records: Sequence[Record], sm: int, n_sms: int
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """(rows, judgements by kind): a row for each config and kind of problem with enough problems,
    of the kinds that are kept.

    A kind is kept where costs that are fitted to half of the audited problems choose for the other
    half at least as well as selection did when they were measured, by the geometric mean.
    """
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


def observations_of(records: Iterable[Record]) -> dict[KernelConfig, list[Observation]]:
    """The times of each config, of audits and of tuning."""
    found: dict[KernelConfig, dict[str, Observation]] = {}

    def add(config: str, name: str, seconds: float) -> None:
        observation = Observation(parse_problem(name), seconds)
        found.setdefault(parse(config), {})[name] = observation

    for record in records:
        if record["kind"] == "sample" and not record.get("num_splits"):
            add(record["config"], record["problem"], record["seconds"])
        elif record["kind"] == "audit":
            for config, seconds in record.get("seconds", {}).items():
                add(config, record["name"], seconds)
    return {config: list(of.values()) for config, of in found.items()}


def fit_all(observations: dict[KernelConfig, list[Observation]], sm: int, n_sms: int) -> Fits:
    """For each config, as of BF16, and kind of problem with enough of them (costs, error, number of
    problems). Both dtypes have the same costs: their instructions take as long."""
    by_kernel: dict[tuple[KernelConfig, str], list[Observation]] = defaultdict(list)
    for config, found in observations.items():
        if _is_other(config):
            continue
        for observation in found:
            key = (config.replace(dtype=DType.BF16), class_of(observation.problem).kind)
            by_kernel[key].append(observation)
    return {
        (config, kind): (*fit(config, found, sm, n_sms), len(found))
        for (config, kind), found in by_kernel.items()
        if len(found) >= LEAST_PROBLEMS
    }


def _is_other(config: KernelConfig) -> bool:
    """Whether the model of time does not describe its grid: the heads that share keys are rows of
    one tile. Where the rule takes such a config, costs do not decide."""
    return getattr(config, "pack_gqa", False)


def _judge(audits: list[Record], sm: int, n_sms: int) -> dict[str, dict[str, Any]]:
    """By kind: how well costs choose for problems that they were not fitted to."""
    halves = (audits[::2], audits[1::2])
    ratios: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for train, test in (halves, halves[::-1]):
        fits = fit_all(observations_of(train), sm, n_sms)
        for record in test:
            problem = parse_problem(record["name"])
            ratio = _ratio_of_choice(record, problem, fits, sm, n_sms)
            ratios[class_of(problem).kind].append((ratio, record["ratio"]))
    judgements = {}
    for kind, pairs in ratios.items():
        held_out, selected = (
            math.exp(sum(map(math.log, values)) / len(values))
            for values in zip(*pairs, strict=True)
        )
        judgements[kind] = {
            "problems": len(pairs),
            "held_out": round(held_out, 4),
            "selected": round(selected, 4),
            "kept": held_out <= selected,
        }
    return judgements


def _ratio_of_choice(record: Record, problem: Problem, fits: Fits, sm: int, n_sms: int) -> float:
    """The time of the config that these costs choose over that of the best; that of what was
    selected where they do not decide. As choose_by_costs in cute_kernels/host/select.cpp."""
    kind = class_of(problem).kind
    measured = {parse(config): seconds for config, seconds in record["seconds"].items()}
    d_head = min(config.d_head for config in measured)
    expected = {}
    for config in measured:
        known = fits.get((config.replace(dtype=DType.BF16), kind))
        if known and config.d_head == d_head:
            expected[config] = expected_microseconds(problem, config, sm, n_sms, **known[0])
    if parse(record["selected"]) not in expected:
        return record["ratio"]
    choice = min(expected, key=expected.__getitem__)
    return measured[choice] / min(measured.values())


def fit(
    config: KernelConfig, observations: Sequence[Observation], sm: int, n_sms: int
) -> tuple[dict[str, float], float]:
    """(costs, median relative error): least squares of the logarithms of expected over measured
    time, held to plausible values where problems do not tell."""
    names = list(_START)
    measured = [observation.seconds * 1e6 for observation in observations]
    arguments = [(observation.problem, config, sm, n_sms) for observation in observations]

    def ratios(point: Sequence[float]) -> list[float]:
        costs = {name: math.exp(x) for name, x in zip(names, point, strict=True)}
        expected = (expected_microseconds(*args, **costs) for args in arguments)
        return [math.log(e / m) for e, m in zip(expected, measured, strict=True)]

    start = [math.log(value) for value in _START.values()]
    # The step first: what the times are by, in one stroke.
    start[names.index("step")] -= median(ratios(start))

    def loss(point: Sequence[float]) -> float:
        held = sum((x - s) ** 2 for x, s in zip(point, start, strict=True))
        return sum(min(r * r, 0.25) for r in ratios(point)) + _PULL * held

    best = minimize(loss, start)
    costs = {name: math.exp(x) for name, x in zip(names, best, strict=True)}
    costs["share"] = min(costs["share"], 1.0)
    return costs, median(abs(math.expm1(r)) for r in ratios(best))


def minimize(loss: Callable[[Sequence[float]], float], start: Sequence[float]) -> list[float]:
    """The simplex method of Nelder and Mead (1965), from steps of 0.5 in each direction."""
    n = len(start)
    points = [list(start)]
    points += [[x + 0.5 * (i == j) for j, x in enumerate(start)] for i in range(n)]
    simplex = sorted((loss(p), p) for p in points)

    def along(t: float, worst: list[float], centre: list[float]) -> tuple[float, list[float]]:
        point = [c + t * (w - c) for c, w in zip(centre, worst, strict=True)]
        return loss(point), point

    for _ in range(_ROUNDS):
        (least, best), (most, worst) = simplex[0], simplex[-1]
        if most - least < 1e-9:
            break
        centre = [sum(p[j] for _, p in simplex[:-1]) / n for j in range(n)]
        reflected = along(-1.0, worst, centre)
        if reflected[0] < least:
            simplex[-1] = min(reflected, along(-2.0, worst, centre))
        elif reflected[0] < simplex[-2][0]:
            simplex[-1] = reflected
        else:
            contracted = along(-0.5 if reflected[0] < most else 0.5, worst, centre)
            if contracted[0] < min(reflected[0], most):
                simplex[-1] = contracted
            else:
                points = [[(a + b) / 2 for a, b in zip(best, p, strict=True)] for _, p in simplex]
                simplex = [(loss(p), p) for p in points]
        simplex.sort()
    return simplex[0][1]
