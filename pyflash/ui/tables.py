"""Tables as data: shown by rich in a terminal, by a page in a browser.

rich is imported then: commands import reports, and help does not wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Group

_WORD = 20  # characters; longer ones are folded


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are text; the first column is a row's name, numbers are set to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    @classmethod
    def of(
        cls, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], note: str = ""
    ) -> Table:
        """With cells of any type; thousands are separated, floats have up to 4 digits."""
        return cls(title, tuple(columns), tuple(tuple(map(cell, row)) for row in rows), note)

    @classmethod
    def of_pairs(cls, title: str, pairs: Mapping[str, Any], note: str = "") -> Table:
        return cls.of(title, ("", ""), list(pairs.items()), note)

    def is_number(self, column: int) -> bool:
        """Whether every cell of a column is a number or empty, and one is not empty."""
        cells = [row[column] for row in self.rows if row[column]]
        return bool(cells) and all(c.replace(",", "").lstrip("+-")[:1].isdigit() for c in cells)

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=None, pad_edge=False, show_header=any(self.columns))
        for i, name in enumerate(self.columns):
            words = [word for row in self.rows for word in row[i].split()]
            number = i > 0 and self.is_number(i)  # whole in the narrowest terminal
            longest = max(map(len, [*words, *name.split()]), default=0)
            table.add_column(
                name,
                justify="right" if number else "left",
                overflow="fold",
                min_width=longest if number else min(_WORD, longest),
            )
        for row in self.rows:
            table.add_row(*map(Text, row))
        note = [Text(self.note, "dim")] if self.note else []
        return Group(Text(f"\n{self.title}", "bold"), table, *note)


def cell(value: Any) -> str:
    """A value as the text of a cell."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return "" if value is None else str(value)
