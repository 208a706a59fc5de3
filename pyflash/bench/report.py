"""A run as a page: tables, and figures where matplotlib is installed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pyflash.bench import figures, plain_text
from pyflash.bench.measurements import Measurement, dates, measurements, places, titles
from pyflash.bench.records import Record
from pyflash.ui.html import image, table_html
from pyflash.ui.markup import element
from pyflash.ui.page import Paged, Sections
from pyflash.ui.tables import Table


@dataclass(frozen=True)
class BenchReport(Paged):
    records: Sequence[Record]

    @property
    def page_title(self) -> str:
        return f"Attention on {places(self.records)}, {dates(self.records)}"

    @property
    def answer(self) -> str:
        return fastest(measurements(self.records))

    def sections(self) -> Sections:
        yield from drawn(self.records)
        yield "measured on", table_html(environments(self.records))
        found = measurements(self.records)
        for title, one in zip(titles(found), found, strict=True):
            yield title, table_html(as_table(title, one.records))


def fastest(found: Sequence[Measurement]) -> str:
    """The contender that is the fastest over all problems, and by how much; "" where fewer than two
    ran in each of them."""
    speeds = [
        {r["contender"]: r["tflops"] for r in one.records if r["timing"] and r["tflops"]}
        for one in found
    ]
    contenders = set.intersection(*map(set, speeds)) if speeds else set()
    if len(contenders) < 2:
        return ""
    means = {c: statistics.geometric_mean(one[c] for one in speeds) for c in contenders}
    first, second, *_ = sorted(means, key=means.__getitem__, reverse=True)
    wins = sum(max(one, key=one.__getitem__) == first for one in speeds)
    return (
        f"{first} is the fastest: {means[first] / means[second]:.3f} times the speed of {second} "
        f"by the geometric mean, and ahead of all others in {wins} of {len(speeds)} problems."
    )


def drawn(of: Sequence[Record]) -> Iterator[tuple[str, Markup]]:
    """The figures; in their place the reason where there is none."""
    for name, draw in (("speed", figures.speed), ("roofline", figures.roofline)):
        try:
            svg = figures.to_svg(draw(of))
        except (ValueError, ImportError) as error:
            yield name, element("p", error)
        else:
            yield name, image(svg, f"{name} of each contender; the tables have the figures")


def environments(of: Sequence[Record]) -> Table:
    """A column for each environment, a row for each fact that one of them has."""
    found: list[dict[str, str | None]] = []
    for record in of:
        if record["environment"] not in found:
            found.append(record["environment"])
    names = dict.fromkeys(name for facts in found for name in facts)
    rows = [(name, *(facts.get(name) for facts in found)) for name in names]
    shown = [row for row in rows if any(row[1:])]
    return Table.of("measured on", [""] * (1 + len(found)), shown)


def as_table(title: str, of: Iterable[Record]) -> Table:
    columns = ("", "ms", "spread, %", "TFLOP/s", "GB/s", "ratio", "% of GEMM", "host us", "error")
    rows = []
    for record in of:
        timing = record["timing"]
        if timing is None:
            rows.append((f"{plain_text.name(record)}: {record['status']}", *[None] * 8))
            continue
        figures_of = (
            record[name]
            for name in ("tflops", "gb_per_second", "ratio", "percent_of_gemm",
                         "host_microseconds", "error")
        )  # fmt: skip
        seconds, spread = timing["seconds"] * 1e3, timing["spread"] * 100
        rows.append((plain_text.name(record), seconds, spread, *figures_of))
    return Table.of(title, columns, rows)
