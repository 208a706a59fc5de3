"""A run as a page: tables, and figures where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from pyflash.bench import figures, records
from pyflash.bench.records import Record
from pyflash.inspect.html import image, table_html
from pyflash.inspect.tables import Table


@dataclass(frozen=True)
class BenchReport:
    records: Sequence[Record]

    @property
    def title(self) -> str:
        facts = self.records[0]["environment"]
        return f"Attention on {facts['device']}, {self.records[0]['time'][:10]}"

    def sections(self) -> Iterator[tuple[str, str]]:
        """(heading, HTML)."""
        yield from drawn(self.records)
        facts = {name: value for name, value in self.records[0]["environment"].items() if value}
        yield "measured on", table_html(Table.of_pairs("measured on", facts))
        for title, group in groupby(self.records, key=_title):
            yield title, table_html(as_table(title, group))

    def _repr_html_(self) -> str:
        from pyflash.inspect.page import fragment

        return fragment(self)


def drawn(of: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """The figures; in their place the reason where there is none."""
    for name, draw in (("speed", figures.speed), ("roofline", figures.roofline)):
        try:
            svg = figures.to_svg(draw(of))
        except (ValueError, ImportError) as error:
            yield name, f"<p>{error}</p>"
        else:
            yield name, image(svg, f"{name} of each contender; the tables have the figures")


def _title(record: Record) -> str:
    return f"{record['what']}: {records.title(record['problem'])}"


def as_table(title: str, of: Iterable[Record]) -> Table:
    columns = ("", "ms", "spread, %", "TFLOP/s", "GB/s", "ratio", "% of GEMM", "host us", "error")
    rows = []
    for record in of:
        timing = record["timing"]
        if timing is None:
            rows.append((f"{records.name(record)}: {record['status']}", *[None] * 8))
            continue
        figures_of = (
            record[name]
            for name in ("tflops", "gb_per_second", "ratio", "percent_of_gemm",
                         "host_microseconds", "error")
        )  # fmt: skip
        seconds, spread = timing["seconds"] * 1e3, timing["spread"] * 100
        rows.append((records.name(record), seconds, spread, *figures_of))
    return Table.of(title, columns, rows)
