"""A picture of a journal: the speed of every candidate, what each field is worth, and which value
of it won each problem. Needs matplotlib: pip install 'pyflash[plot]'."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from pyflash.bench.figures import COLOURS, require_matplotlib, save
from pyflash.config import KernelConfig, parse
from pyflash.tuner.builder import Kernel
from pyflash.tuner.journal import Record, read_journal
from pyflash.tuner.model import flops
from pyflash.tuner.problems import named_problem

# A colour and a marker for each family.
_COLOURS = COLOURS[:4]
_MARKS = ("o", "^", "s", "D")


@dataclass(frozen=True, slots=True)
class Seen:
    """One problem of a journal."""

    name: str
    seconds: dict[Kernel, float]  # the latest of each candidate
    winner: KernelConfig | None


def seen_in(records: Sequence[Record]) -> list[Seen]:
    """The problems that were tuned for, in the journal's order."""
    seconds: dict[str, dict[Kernel, float]] = defaultdict(dict)
    winners: dict[str, KernelConfig] = {}
    for record in records:
        if record["kind"] == "sample":
            seconds[record["problem"]][Kernel.of_record(record)] = record["seconds"]
        elif record["kind"] == "winner":
            winners[record["problem"]] = parse(record["config"])
    return [Seen(name, of, winners.get(name)) for name, of in seconds.items()]


def main_effects(problems: Sequence[Seen]) -> dict[tuple[str, str], dict[Any, float]]:
    """By (family, field), of each value: the mean over problems of how much slower the fastest
    candidate with it is than the fastest of its family, where a problem's candidates have several
    values."""
    found: dict[tuple[str, str], dict[Any, list[float]]] = defaultdict(lambda: defaultdict(list))
    for problem in problems:
        by_family: dict[str, dict[KernelConfig, float]] = defaultdict(dict)
        for kernel, seconds in problem.seconds.items():
            times = by_family[kernel.config.family.name]
            times[kernel.config] = min(seconds, times.get(kernel.config, math.inf))
        for family, times in by_family.items():
            best = min(times.values())
            for field in next(iter(times)).field_types():
                values = {getattr(config, field) for config in times}
                for value in values if len(values) > 1 else ():
                    least = min(t for c, t in times.items() if getattr(c, field) == value)
                    found[family, field][value].append(least / best)
    return {
        key: {value: mean(ratios) for value, ratios in sorted(values.items())}
        for key, values in found.items()
    }


def draw(journal: Path, out: Path) -> None:
    """Writes the picture, PNG or SVG by the file's name.

    Raises ValueError where the journal holds no samples, ImportError without matplotlib.
    """
    problems = seen_in(read_journal(journal))
    if not problems:
        raise ValueError(f"{journal} holds no measured candidate: nothing to draw")
    effects = main_effects(problems)
    n_rows = max(1, math.ceil(len(effects) / 4))
    figure = require_matplotlib().figure.Figure(
        figsize=(14, 1.2 + 0.45 * len(problems) + 2.4 * n_rows + 2), layout="constrained"
    )
    top, bottom = figure.subfigures(2, 1, height_ratios=[2 + 0.45 * len(problems), 2.4 * n_rows])
    _draw_speeds(top.subplots(), problems)
    if effects:
        axes = list(bottom.subplots(n_rows, 4, squeeze=False).flat)
        for axis, (key, values) in zip(axes, effects.items(), strict=False):
            _draw_effect(axis, key, values, problems)
        for axis in axes[len(effects) :]:
            axis.set_visible(False)
    figure.suptitle(f"{journal.name}: {len(problems)} problems", fontsize=12)
    save(figure, out)


def _draw_speeds(axis: Any, problems: Sequence[Seen]) -> None:
    """A row for each problem, with its winner, and a mark for each candidate."""
    families = sorted({k.config.family.name for problem in problems for k in problem.seconds})
    for row, problem in enumerate(problems):
        work = flops(named_problem(problem.name)) / 1e12
        for i, family in enumerate(families):
            mine = [t for k, t in problem.seconds.items() if k.config.family.name == family]
            speeds = [100 * min(problem.seconds.values()) / seconds for seconds in mine]
            style = {"color": _COLOURS[i % 4], "marker": _MARKS[i % 4], "linestyle": "none"}
            label = family if row == 0 else None
            axis.plot(speeds, [row] * len(speeds), markersize=4, alpha=0.5, label=label, **style)
        text = f"{work / min(problem.seconds.values()):.3g} TFLOP/s"
        axis.annotate(text, (100, row), textcoords="offset points", xytext=(6, -3), fontsize=8)
    labels = [f"{problem.name}\n{problem.winner or ''}" for problem in problems]
    axis.set_yticks(range(len(problems)), labels, fontsize=8)
    axis.set_xlim(0, 112)
    axis.invert_yaxis()
    axis.set_xlabel("speed of every candidate, % of the problem's best; masked scores not counted")
    axis.grid(axis="x", alpha=0.3)
    axis.legend(loc="lower left", fontsize=8)


def _draw_effect(
    axis: Any, key: tuple[str, str], values: dict[Any, float], problems: Sequence[Seen]
) -> None:
    """Bars; above each, how many problems a config with this value won."""
    family, field = key
    won = [
        getattr(problem.winner, field)
        for problem in problems
        if problem.winner is not None and problem.winner.family.name == family
    ]
    names = [getattr(value, "name", str(value)) for value in values]
    heights = [100 * (ratio - 1) for ratio in values.values()]
    axis.bar(names, heights, color=_COLOURS[0])
    for x, (value, height) in enumerate(zip(values, heights, strict=True)):
        if value in won:
            text = f"won {won.count(value)}"
            axis.annotate(text, (x, height), ha="center", va="bottom", fontsize=8)
    axis.set_title(f"{field} ({family.partition('_')[0]})", fontsize=9)
    axis.set_ylabel("% slower than best", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.margins(y=0.2)
