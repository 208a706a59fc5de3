"""A journal as a page: winners, the speed of every candidate, what each field is worth, and what
failed. It needs neither a GPU nor matplotlib."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from pyflash.inspect.html import bars, scrolling, table_html
from pyflash.inspect.tables import Table
from pyflash.tuner.journal import Record, read_journal
from pyflash.tuner.model import flops
from pyflash.tuner.picture import Seen, main_effects, seen_in
from pyflash.tuner.problems import parse_problem

_SHOWN = 20  # candidates of a problem


@dataclass(frozen=True)
class TuningReport:
    name: str  # of the journal
    records: Sequence[Record]

    @classmethod
    def of(cls, journal: Path) -> TuningReport:
        """Raises JournalError, OSError; ValueError where nothing was measured."""
        records = read_journal(journal)
        if not seen_in(records):
            raise ValueError(f"{journal} holds no measured candidate: nothing to show")
        return cls(journal.name, records)

    @property
    def title(self) -> str:
        gpu = next((r["gpu"] for r in self.records if r["kind"] == "run" and "gpu" in r), "a GPU")
        return f"Tuning on {gpu}: {self.name}"

    def sections(self) -> Iterator[tuple[str, str]]:
        """(heading, HTML)."""
        problems = seen_in(self.records)
        yield "best config of each problem", table_html(_best(problems))
        for (family, field), values in main_effects(problems).items():
            yield f"{field} of {family}", _effect(field, values)
        for problem in problems:
            yield problem.name, table_html(_candidates(problem))
        if failures := self._failures():
            yield "failures", table_html(failures)
        if refused := self._refused():
            yield "refused by rules", table_html(refused)

    def _failures(self) -> Table | None:
        found = Counter((r["stage"], r["reason"]) for r in self.records if r["kind"] == "failed")
        rows = [(stage, n, reason) for (stage, reason), n in found.most_common()]
        return Table.of("failures", ("at", "times", "reason"), rows) if rows else None

    def _refused(self) -> Table | None:
        runs = [r for r in self.records if r["kind"] == "run" and r.get("refused")]
        if not runs:
            return None
        counts = sorted(runs[-1]["refused"].items(), key=lambda item: -item[1])
        return Table.of("refused by rules", ("rule", "configs"), counts)

    def _repr_html_(self) -> str:
        from pyflash.inspect.page import fragment

        return fragment(self)


def _best(problems: Sequence[Seen]) -> Table:
    """Without a last rung, the fastest that was measured, which is no winner yet."""
    rows = []
    for problem in problems:
        fastest = min(problem.seconds, key=problem.seconds.__getitem__).config
        best = problem.winner or fastest
        seconds = min(s for kernel, s in problem.seconds.items() if kernel.config == best)
        state = "winner" if problem.winner else "so far"
        rows.append((problem.name, seconds * 1e6, _tflops(problem, seconds),
                     len(problem.seconds), state, str(best)))  # fmt: skip
    columns = ("problem", "us", "TFLOP/s", "measured", "", "config")
    return Table.of("best config of each problem", columns, rows)


def _candidates(problem: Seen) -> Table:
    ranking = sorted(problem.seconds.items(), key=lambda item: item[1])
    rows = [
        (str(kernel), str(kernel.features), seconds * 1e6, _tflops(problem, seconds))
        for kernel, seconds in ranking[:_SHOWN]
    ]
    left = len(ranking) - len(rows)
    note = f"and {left} slower ones" if left else ""
    return Table.of(problem.name, ("config", "features", "us", "TFLOP/s"), rows, note)


def _effect(field: str, values: dict[Any, float]) -> str:
    slower = {getattr(v, "name", str(v)): 100 * (ratio - 1) for v, ratio in values.items()}
    label = f"how much slower the best config with each value of {field} is"
    about = f"<p>{escape(label)} than the best of all, mean over the problems:</p>"
    return about + scrolling(bars(slower, "% slower"), label)


def _tflops(problem: Seen, seconds: float) -> float:
    return flops(parse_problem(problem.name)) / seconds / 1e12
