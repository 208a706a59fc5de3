"""One self-contained HTML page for a config, a comparison or a diff: no network, no script.

    Path("config.html").write_text(page(inspect(config, "sm_90")))

It follows the browser's light or dark theme. What is wider than the window scrolls by itself, by
keyboard too, so that the page never does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from markupsafe import Markup

from pyflash.compare.report import Comparison, notes, table_of
from pyflash.inspect.diff import Diff
from pyflash.inspect.inspection import Inspection
from pyflash.layouts import Layout, plot, plot_threads
from pyflash.ui.html import STYLE, bars, bullets, notebook, scrolling, table_html
from pyflash.ui.markup import element, joined
from pyflash.ui.tables import Table

_PAGE = Markup("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}
body {{ margin: 0; }}
main {{ max-width: 75rem; margin: 0 auto; padding: 1rem; box-sizing: border-box; }}
</style>
</head>
<body class="pyflash">
<main>
{body}
</main>
</body>
</html>
""")


@runtime_checkable
class Paged(Protocol):
    """A report that knows what its page has on it."""

    @property
    def title(self) -> str: ...

    def sections(self) -> Iterable[tuple[str, Markup]]:
        """(heading, HTML). What is not Markup is text, and escaped."""


Report = Inspection | Comparison | Diff | Paged
Sections = Iterable[tuple[str, Markup]]


def page(report: Report) -> Markup:
    """The whole page. Raises TypeError for what it has no page for."""
    return _PAGE.format(title=_title(report), style=STYLE, body=_body(report))


def fragment(report: Report) -> Markup:
    """The same for a notebook's cell."""
    return notebook(_body(report))


def _title(report: Report) -> str:
    if isinstance(report, Inspection):
        return f"{report.config} on {report.arch}"
    if isinstance(report, Comparison):
        return f"Attention beside its GEMMs: {report.title}"
    if isinstance(report, Diff):
        return f"{report.configs[0]} and {report.configs[1]}"
    if isinstance(report, Paged):
        return report.title
    raise TypeError(f"no page for {type(report).__name__}")


def _body(report: Report) -> Markup:
    sections = [
        (_id(i, name), name, content) for i, (name, content) in enumerate(_sections(report))
    ]
    links = bullets(element("a", name, href=f"#{place}") for place, name, _ in sections)
    parts = [
        element("h1", _title(report)),
        element("nav", links, aria_label="Contents"),
        *(
            element("section", element("h2", name), content, id=place)
            for place, name, content in sections
        ),
    ]
    return Markup("\n").join(parts)


def _sections(report: Report) -> Sections:
    if isinstance(report, Inspection):
        yield from _of_inspection(report)
    elif isinstance(report, Comparison):
        yield from _of_comparison(report)
    elif isinstance(report, Diff):
        yield from _of_diff(report)
    else:
        yield from report.sections()


def _tables(tables: Iterable[Table]) -> Sections:
    for table in tables:
        yield table.title, table_html(table)


def _of_inspection(found: Inspection) -> Sections:
    troubles = [*found.violations, *found.warnings]
    troubles += [f"no {part}: {reason}" for part, reason in found.missing.items()]
    if troubles:
        yield "notes", joined(*(element("p", text, class_="warn") for text in troubles))
    yield from _shared_memory(found)
    yield from _tables(found.tables())
    if found.phases:
        alive = found.phases | {"limit": found.resources["register_limit"]}
        chart = bars(alive, "registers")
        yield "registers alive in each phase", scrolling(chart, "registers alive in each phase")
    if found.kernels and found.kernels[0].floors:
        floors = {floor.pipe: floor.cycles for floor in found.kernels[0].floors}
        chart = bars(floors, "cycles")
        yield "least cycles of the main loop", scrolling(chart, "least cycles of each pipe")
    S = found.layouts.get("MMA C") or found.layouts.get("MMA QK^T C")
    if S:
        svg = plot_threads(S.layout, S.extents[:2])
        yield "threads of S", scrolling(svg, "which thread holds which element of S")


def _shared_memory(found: Inspection) -> Sections:
    """K as this config lays it out, beside K without a swizzle."""
    if "K" not in found.layouts:
        return
    K, reader = found.layouts["K"], found.description.reader
    rows, columns = K.extents[:2]
    plain = Layout((rows, columns), (columns, 1))
    svg = plot(plain, K.tile) if K.layout.swizzle else plot(K.tile)
    about = f"The first of {K.repeats}. " if K.repeats else ""
    if reader != "ldmatrix":
        about += f"{reader} reads K here, 8 rows of 16 bytes at a time as ldmatrix does."
    note = element("p", about) if about else Markup()
    yield "K in shared memory", note + scrolling(svg, "picture of K's layout, by bank")


def _of_comparison(found: Comparison) -> Sections:
    yield "figures", table_html(table_of(found))
    times = {line.what: line.seconds * 1e3 for line in (*found.sums, *found.fused[:1])}
    yield "time", scrolling(bars(times, "ms"), "milliseconds of each")
    yield "what fusion saves", bullets(notes(found))


def _of_diff(found: Diff) -> Sections:
    yield "configs", scrolling(element("pre", found.heading), "the two configs")
    yield from _tables(found.tables())
    code = element("pre", found.sass())
    yield "machine code", scrolling(code, "differences of the main loops' machine code")


def _id(i: int, name: str) -> str:
    """The number tells two sections of one heading apart."""
    return "".join(c if c.isalnum() else "-" for c in f"{name.lower()}-{i}")
