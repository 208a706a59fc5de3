"""What a tuning run shows while it goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pyflash.codegen.progress import TerminalProgress
from pyflash.tuner.contest import Contest


class TuningProgress(TerminalProgress):
    """A bar for each problem where the console is a terminal, else a line for each change."""

    def __init__(
        self, console: Console, contests: Sequence[Contest], totals: Sequence[int]
    ) -> None:
        self._console = console
        self._start = time.monotonic()
        columns = (
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
        )
        self._progress = Progress(*columns, console=console, transient=True)
        self._tasks = {
            contest.name: self._progress.add_task(contest.name, total=total)
            for contest, total in zip(contests, totals, strict=True)
        }
        self._said = ""
        self._activity = self._progress.add_task("", total=None)
        self._shown: dict[str, tuple[int, float]] = {}

    def say(self, text: str) -> None:
        """What is being done, or what went wrong."""
        if self._console.is_terminal:
            self._progress.update(self._activity, description=text)
        elif text != self._said:
            self._console.print(f"{self._seconds()} {text}", markup=False, soft_wrap=True)
        self._said = text

    def show(self, contest: Contest) -> None:
        """How far a problem is, and its best candidate so far."""
        best = next(iter(contest.ranking()), None)
        seconds = contest.standings[best].seconds if best else 0.0
        text = f"{seconds * 1e6:.1f} us  {contest.name}"
        n_tried = len(contest.tried)
        if self._console.is_terminal:
            self._progress.update(self._tasks[contest.name], completed=n_tried, description=text)
        elif self._shown.get(contest.name) != (n_tried, seconds):
            self._shown[contest.name] = (n_tried, seconds)
            self._console.print(
                f"{self._seconds()} {n_tried} tried, best {text}", markup=False, soft_wrap=True
            )

    def _seconds(self) -> str:
        return f"{time.monotonic() - self._start:6.1f} s"
