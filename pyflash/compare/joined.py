"""Two files of the CUTLASS profiler beside each other, as a table and as a page."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from rich.console import Group
from rich.text import Text

from pyflash.bench.profiler_csv import Joined, Profile, Row, join
from pyflash.ui.html import bullets, table_html
from pyflash.ui.page import Paged, Sections
from pyflash.ui.tables import Table


@dataclass(frozen=True)
class JoinedProfiles(Paged):
    """Two files beside each other: a row for each operation and problem."""

    first: Profile
    second: Profile

    @property
    def joined(self) -> list[Joined]:
        return join(self.first, self.second)

    @property
    def refused(self) -> list[str]:
        """The refused rows, each with the reason."""
        profiles = (self.first, self.second)
        return [f"{profile.name}: {row}" for profile in profiles for row in profile.refused]

    @property
    def notes(self) -> list[str]:
        """Notes about the files, and the refused rows."""
        profiles = (self.first, self.second)
        notes = [f"{profile.name}: {profile.note}" for profile in profiles if profile.note]
        return notes + [f"refused: {text}" for text in self.refused]

    @property
    def page_title(self) -> str:
        return f"{self.first.name} and {self.second.name}"

    @property
    def answer(self) -> str:
        speedups = [one.speedup for one in self.joined if one.speedup]
        if not speedups:
            return "No operation has a time in both."
        return (
            f"{self.second.name} has {statistics.geometric_mean(speedups):.3f} times the speed of "
            f"{self.first.name}: the geometric mean of {len(speedups):,} rows that both have."
        )

    def table(self) -> Table:
        names = (self.first.name, self.second.name)
        of_each = (part for name in names for part in (f"{name} ms", "TFLOP/s"))
        columns = ("kind", "m", "n", "k", "batch", *of_each, "speedup", "operation")
        rows = []
        for j in self.joined:
            sides = (cell for row in (j.first, j.second) for cell in _side(row))
            rows.append((*map(str, j.problem), *sides, f"{j.speedup:.3f}" if j.speedup else "",
                         j.operation))  # fmt: skip
        return Table.of(self.page_title, columns, rows)

    def sections(self) -> Sections:
        yield "rows", table_html(self.table())
        if self.notes:
            yield "notes", bullets(self.notes)

    def __rich__(self) -> Group:
        return Group(self.table(), *map(Text, self.notes))


def _side(row: Row | None) -> tuple[str, str]:
    if row is None:
        return "", ""
    return f"{row.seconds * 1e3:.4f}", f"{row.gflops / 1e3:.1f}"
