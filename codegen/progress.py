"""What a build shows while it runs: how much is done, and how long the rest may take."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from typing_extensions import Self


class TerminalProgress:
    """`_progress`, shown inside a `with` where `_console` is a terminal."""

    _console: Console
    _progress: Progress

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._progress.stop()


class BuildProgress(TerminalProgress):
    """A bar where the console is a terminal, one line per finished object elsewhere."""

    def __init__(self, console: Console, total: int, seconds: float | None = None) -> None:
        """`seconds`: how long all may take, where that is known."""
        self._console = console
        self._total = total
        self._done = 0
        self._failed = 0
        self._start = time.monotonic()
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[rest]}"),
        )
        self._progress = Progress(*columns, console=console, transient=True)
        rest = f"about {seconds:.0f} s" if seconds else ""
        self._task = self._progress.add_task("", total=total, rest=rest)

    def finished(self, label: str, failed: bool) -> None:
        self._done += 1
        self._failed += failed
        rest = self._estimate()
        if failed:
            label = f"{label} FAILED"
        if self._console.is_terminal:
            self._progress.update(self._task, advance=1, rest=f"{rest} · {label}")
        else:
            seconds = time.monotonic() - self._start
            count = f"[{self._done}/{self._total}]"
            self._console.print(f"{count} {seconds:.0f} s, {rest}: {label}", markup=False)

    def _estimate(self) -> str:
        """The seconds left, if each remaining object takes as long as the finished ones."""
        if self._done == self._total:
            return f"{self._failed} failed" if self._failed else "done"
        seconds = (time.monotonic() - self._start) / self._done * (self._total - self._done)
        return f"about {seconds:.0f} s left"
