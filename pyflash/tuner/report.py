"""A journal, of any machine, as a page, as tables and as JSON: winners, the speed of every
candidate, what each field is worth, and what failed. It needs neither a GPU nor matplotlib."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.console import Group
from rich.text import Text

from pyflash.config import KernelConfig
from pyflash.tuner.builder import Kernel
from pyflash.tuner.journal import Record, read_journal
from pyflash.tuner.model import flops
from pyflash.tuner.picture import Seen, main_effects, seen_in
from pyflash.tuner.problems import named_problem
from pyflash.ui.html import bars, scrolling, table_html
from pyflash.ui.markup import element
from pyflash.ui.page import Paged, Sections
from pyflash.ui.tables import Table

_SHOWN = 20  # candidates of a problem


@dataclass(frozen=True)
class TuningReport(Paged):
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
    def gpu(self) -> str | None:
        """None where the journal lacks it."""
        return next((r["gpu"] for r in self.records if r["kind"] == "run" and "gpu" in r), None)

    @property
    def page_title(self) -> str:
        return f"Tuning on {self.gpu or 'a GPU'}: {self.name}"

    @property
    def answer(self) -> str:
        problems = seen_in(self.records)
        (config, n), *_ = Counter(str(_best_of(one)[1]) for one in problems).most_common()
        if len(problems) > 1:
            return f"{config} is the fastest in {n} of {len(problems)} problems."
        _, best, seconds = _best_of(problems[0])
        others = [s for kernel, s in problems[0].seconds.items() if kernel.config != best]
        if not others:
            return f"{config} was measured alone."
        return f"{config} is the best: {min(others) / seconds:.3f} times the speed of the next."

    def tables(self) -> list[Table]:
        """The best of each problem, failures and refusals."""
        tables = [_best(seen_in(self.records)), self._failures(), self._refused()]
        return [table for table in tables if table]

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        failures = Counter((r["stage"], r["reason"]) for r in self._of_kind("failed"))
        return {
            "journal": self.name,
            "gpu": self.gpu,
            "problems": {problem.name: _problem_json(problem) for problem in seen_in(self.records)},
            "failures": [
                {"stage": stage, "reason": reason, "times": n}
                for (stage, reason), n in failures.most_common()
            ],
            "refused": self._refused_by_rule(),
        }

    def __rich__(self) -> Group:
        return Group(Text(self.page_title), *self.tables())

    def sections(self) -> Sections:
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

    def _of_kind(self, kind: str) -> list[Record]:
        return [record for record in self.records if record["kind"] == kind]

    def _failures(self) -> Table | None:
        found = Counter((r["stage"], r["reason"]) for r in self._of_kind("failed"))
        rows = [(stage, n, reason) for (stage, reason), n in found.most_common()]
        return Table.of("failures", ("at", "times", "reason"), rows) if rows else None

    def _refused_by_rule(self) -> dict[str, int]:
        """How many configs each rule refused, in the latest run that says it."""
        return next((r["refused"] for r in self._of_kind("run")[::-1] if r.get("refused")), {})

    def _refused(self) -> Table | None:
        counts = sorted(self._refused_by_rule().items(), key=lambda item: -item[1])
        return Table.of("refused by rules", ("rule", "configs"), counts) if counts else None


def _best_of(problem: Seen) -> tuple[str, KernelConfig, float]:
    """(state, config, seconds). Without a last rung, the fastest that was measured, which is no
    winner yet."""
    fastest = min(problem.seconds, key=problem.seconds.__getitem__).config
    best = problem.winner or fastest
    seconds = min(s for kernel, s in problem.seconds.items() if kernel.config == best)
    return "winner" if problem.winner else "so far", best, seconds


def _best(problems: Sequence[Seen]) -> Table:
    rows = []
    for problem in problems:
        state, best, seconds = _best_of(problem)
        rows.append((problem.name, seconds * 1e6, _tflops(problem, seconds),
                     len(problem.seconds), state, str(best)))  # fmt: skip
    columns = ("problem", "us", "TFLOP/s", "measured", "", "config")
    return Table.of("best config of each problem", columns, rows)


def _problem_json(problem: Seen) -> dict[str, Any]:
    state, best, seconds = _best_of(problem)
    return {
        "state": state,
        "best": {"config": str(best), "seconds": seconds, "tflops": _tflops(problem, seconds)},
        "candidates": [
            {
                "config": str(kernel.config),
                "features": str(kernel.features),
                "num_splits": kernel.num_splits,
                "seconds": value,
            }
            for kernel, value in _ranking(problem)
        ],
    }


def _ranking(problem: Seen) -> list[tuple[Kernel, float]]:
    """The fastest first."""
    return sorted(problem.seconds.items(), key=lambda item: item[1])


def _candidates(problem: Seen) -> Table:
    ranking = _ranking(problem)
    rows = [
        (str(kernel), str(kernel.features), seconds * 1e6, _tflops(problem, seconds))
        for kernel, seconds in ranking[:_SHOWN]
    ]
    left = len(ranking) - len(rows)
    note = f"and {left} slower ones" if left else ""
    return Table.of(problem.name, ("config", "features", "us", "TFLOP/s"), rows, note)


def _effect(field: str, values: dict[Any, float]) -> Markup:
    slower = {getattr(v, "name", str(v)): 100 * (ratio - 1) for v, ratio in values.items()}
    label = f"how much slower the best config with each value of {field} is"
    about = element("p", f"{label} than the best of all, mean over the problems:")
    return about + scrolling(bars(slower, "% slower"), label)


def _tflops(problem: Seen, seconds: float) -> float:
    return flops(named_problem(problem.name)) / seconds / 1e12
