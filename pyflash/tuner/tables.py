"""python -m pyflash.tuner.tables JOURNAL... --out TABLE.json: a tuned table from journals.

Journals of `pyflash tune` give choices: for the class of each tuned problem its winner. Those of
`pyflash.tuner.audit`, and the samples of `pyflash tune`, give costs: of each config, what a launch,
a tile and a step take, fitted to the times of many problems.
"""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pyflash.config import DType, KernelConfig, parse
from pyflash.op import tables
from pyflash.op.selection import Problem, class_of, expected_microseconds
from pyflash.tuner.journal import Record, read_journal
from pyflash.tuner.problems import parse_problem, problem_from_json

# A winner stands for problems with pairs, rows and keys within this factor of its own.
NEAR = 2**0.25
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


def table_of(journals: Sequence[Path], name: str | None = None, costs: bool = True) -> tables.Table:
    """The table of these journals' GPU. Raises ValueError where they are of several, or hold
    nothing to make a table of; OSError for a file that cannot be read."""
    records = [record for path in journals for record in read_journal(path)]
    runs = [record for record in records if record["kind"] == "run"]
    gpus = {(run["gpu"], run["sm"], run["n_sms"]) for run in runs}
    if len(gpus) != 1:
        known = ", ".join(sorted(gpu for gpu, *_ in gpus)) or "no run"
        raise ValueError(f"a table is of one GPU: these journals hold {known}")
    ((gpu, sm, n_sms),) = gpus
    choices = choices_of(records)
    fitted = costs_of(observations_of(records), sm, n_sms) if costs else []
    if not choices and not fitted:
        raise ValueError("these journals hold no winner, and too few problems to fit costs to")
    return {
        "format": tables.FORMAT,
        "name": name or gpu,
        "gpu": gpu,
        "sm": sm,
        "n_sms": n_sms,
        "made": {
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "journals": [path.name for path in journals],
            "environments": list(
                {str(run["environment"]): run["environment"] for run in runs}.values()
            ),
            "kernels": sorted({run["kernels"] for run in runs}),
        },
        "choices": choices,
        "costs": fitted,
    }


def merged(new: tables.Table, old: tables.Table) -> tables.Table:
    """`new` with the rows of `old`, a table of the same GPU, that it does not replace."""
    classes = {tables.class_of(row["class"]) for row in new["choices"]}
    priced = {(row["config"], row["kind"]) for row in new["costs"]}
    kept = [row for row in old["choices"] if tables.class_of(row["class"]) not in classes]
    costs = [row for row in old["costs"] if (row["config"], row["kind"]) not in priced]
    return new | {"choices": [*new["choices"], *kept], "costs": [*new["costs"], *costs]}


def choices_of(records: Iterable[Record]) -> list[dict[str, Any]]:
    """A row for each problem that was won, the latest winner of each."""
    winners = {r["problem"]: r for r in records if r["kind"] == "winner"}
    rows = []
    for name, record in winners.items():
        problem = problem_from_json(record["values"])
        known = class_of(problem)
        rows.append(
            {
                "class": {
                    "dtype": problem.dtype.name,
                    "d_head": problem.d_head,
                    "features": known.features,
                    "packed": problem.packed,
                    "pairs": _near(known.pairs),
                    "rows": _near(known.rows),
                    "keys": _near(known.keys),
                },
                "config": record["config"],
                "num_splits": 0,
                "problem": name,
                "microseconds": round(record["seconds"] * 1e6, 3),
                "spread": record["spread"],
                "runners_up": {
                    config: round(seconds * 1e6, 3)
                    for config, seconds in record["runners_up"].items()
                },
                "measured": record["n_measured"],
                "candidates": record["n_candidates"],
                "time": record["time"],
            }
        )
    return rows


def observations_of(records: Iterable[Record]) -> dict[KernelConfig, list[Observation]]:
    """The times of each config, of audits and of tuning."""
    found: dict[KernelConfig, dict[str, Observation]] = {}

    def add(config: str, name: str, seconds: float) -> None:
        observation = Observation(parse_problem(name), seconds)
        found.setdefault(parse(config), {})[name] = observation

    for record in records:
        if record["kind"] == "sample":
            add(record["config"], record["problem"], record["seconds"])
        elif record["kind"] == "audit":
            for config, seconds in record.get("seconds", {}).items():
                add(config, record["name"], seconds)
    return {config: list(of.values()) for config, of in found.items()}


def costs_of(
    observations: dict[KernelConfig, list[Observation]], sm: int, n_sms: int
) -> list[dict[str, Any]]:
    """A row for each config and kind of problem with enough of them. Both dtypes have the same
    costs: their instructions take as long."""
    by_kernel: dict[tuple[KernelConfig, str], list[Observation]] = {}
    for config, found in observations.items():
        for observation in found:
            key = (config.replace(dtype=DType.BF16), class_of(observation.problem).kind)
            by_kernel.setdefault(key, []).append(observation)
    rows = []
    for (config, kind), found in sorted(by_kernel.items(), key=lambda item: item[0]):
        if len(found) >= LEAST_PROBLEMS:
            costs, error = fit(config, found, sm, n_sms)
            figures = {name: round(value, 5) for name, value in costs.items()}
            facts = {"kind": kind, **figures, "problems": len(found), "error": round(error, 4)}
            rows += [{"config": str(config.replace(dtype=dtype)), **facts} for dtype in DType]
    return rows


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


def _near(value: int) -> list[int]:
    return [math.ceil(value / NEAR), math.floor(value * NEAR)]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pyflash.tuner.tables", description=__doc__)
    parser.add_argument("journals", type=Path, nargs="+", metavar="JOURNAL")
    parser.add_argument("--out", type=Path, required=True, metavar="TABLE.json")
    parser.add_argument("--name", help="of the table; the GPU's by default")
    parser.add_argument("--no-costs", action="store_true", help="choices alone")
    arguments = parser.parse_args(argv)
    try:
        table = table_of(arguments.journals, arguments.name, costs=not arguments.no_costs)
        tables.write_table(arguments.out, table)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.out}: {len(table['choices'])} choices, {len(table['costs'])} costs")
    for row in table["costs"]:
        print(f"  {row['kind']:6} error {row['error']:.1%} of {row['problems']}: {row['config']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
