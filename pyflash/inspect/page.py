"""One self-contained HTML page for a config, a comparison or a diff: no network, no script.

    Path("config.html").write_text(page(inspect(config, "sm_90")))

It follows the browser's light or dark theme. What is wider than the window scrolls by itself, by
keyboard too, so that the page never does.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from pyflash.compare.report import Comparison, line_cells, notes
from pyflash.inspect.diff import Diff
from pyflash.inspect.inspection import Inspection
from pyflash.inspect.sheet import Sheet
from pyflash.inspect.tables import Table
from pyflash.layouts import Layout, plot, plot_threads
from pyflash.layouts.svg import FILLS, Picture

# Contrast of text is at least 7 on both backgrounds.
STYLE = """
:root { color-scheme: light dark; --ink: #16181d; --soft: #4a4f5a; --back: #ffffff;
  --line: #c9cdd6; --head: #f0f2f6; --warn: #8a1c1c; }
@media (prefers-color-scheme: dark) { :root { --ink: #eceef2; --soft: #b4bac6; --back: #14161b;
  --line: #3d424e; --head: #21252d; --warn: #ffb3b3; } }
.pyflash { color: var(--ink); background: var(--back); font: 15px/1.5 system-ui, sans-serif; }
.pyflash h1 { font-size: 1.35rem; overflow-wrap: anywhere; }
.pyflash h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.pyflash .scroll { overflow-x: auto; max-width: 100%; }
.pyflash .scroll:focus-visible, .pyflash a:focus-visible { outline: 3px solid #3b82f6; }
.pyflash .scroll svg { max-width: none !important; display: block; }
.pyflash table { border-collapse: collapse; font-size: .87rem;
  font-variant-numeric: tabular-nums; }
.pyflash caption { text-align: left; color: var(--soft); caption-side: bottom; padding: .3rem 0; }
.pyflash th, .pyflash td { padding: .2rem .7rem .2rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); white-space: nowrap; }
.pyflash thead th { background: var(--head); }
.pyflash .number { text-align: right; }
.pyflash .warn { color: var(--warn); }
.pyflash nav ul { columns: 19rem; padding-left: 1.2rem; }
.pyflash a { color: inherit; }
.pyflash pre { font-size: .8rem; }
"""
_PAGE = """<!doctype html>
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
"""

Report = Inspection | Comparison | Diff | Sheet


def page(report: Report) -> str:
    """The whole page. Raises TypeError for what it has no page for."""
    return _PAGE.format(title=escape(_title(report)), style=STYLE, body=_body(report))


def fragment(report: Report) -> str:
    """The same for a notebook's cell."""
    return f'<div class="pyflash"><style>{STYLE}</style>{_body(report)}</div>'


def _title(report: Report) -> str:
    if isinstance(report, Inspection):
        return f"{report.config} on {report.arch}"
    if isinstance(report, Comparison):
        return f"Attention beside its GEMMs: {report.title}"
    if isinstance(report, Diff):
        return f"{report.configs[0]} and {report.configs[1]}"
    if isinstance(report, Sheet):
        return str(report.config)
    raise TypeError(f"no page for {type(report).__name__}")


def _body(report: Report) -> str:
    sections = dict(_sections(report))
    links = "".join(f'<li><a href="#{_id(name)}">{escape(name)}</a></li>' for name in sections)
    parts = [
        f"<h1>{escape(_title(report))}</h1>",
        f'<nav aria-label="Contents"><ul>{links}</ul></nav>',
        *(
            f'<section id="{_id(name)}"><h2>{escape(name)}</h2>{content}</section>'
            for name, content in sections.items()
        ),
    ]
    return "\n".join(parts)


def _sections(report: Report) -> Iterable[tuple[str, str]]:
    if isinstance(report, Inspection):
        yield from _of_inspection(report)
    elif isinstance(report, Comparison):
        yield from _of_comparison(report)
    elif isinstance(report, Sheet):
        yield "config", scrolling(f"<pre>{escape(report.head)}</pre>", "the config as C++")
        yield from _tables(report.tables())
    else:
        yield from _of_diff(report)


def _tables(tables: Iterable[Table]) -> Iterable[tuple[str, str]]:
    for table in tables:
        yield table.title, _table(table)


def _of_inspection(found: Inspection) -> Iterable[tuple[str, str]]:
    troubles = [*found.violations, *found.warnings]
    troubles += [f"no {part}: {reason}" for part, reason in found.missing.items()]
    if troubles:
        yield "notes", "".join(f'<p class="warn">{escape(text)}</p>' for text in troubles)
    yield from _shared_memory(found)
    yield from _tables(found.tables())
    if found.kernels and found.kernels[0].floors:
        floors = {floor.pipe: floor.cycles for floor in found.kernels[0].floors}
        chart = bars(floors, "cycles")
        yield "least cycles of the main loop", scrolling(chart, "least cycles of each pipe")
    if "MMA C" in found.layouts:
        C = found.layouts["MMA C"]
        svg = plot_threads(C.layout, C.extents[:2])
        yield "threads of S", scrolling(svg, "which thread holds which element of S")


def _shared_memory(found: Inspection) -> Iterable[tuple[str, str]]:
    """K as this config lays it out, beside K without a swizzle."""
    if "K" not in found.layouts:
        return
    K = found.layouts["K"].layout
    rows, columns = K.extents[:2]
    plain = Layout((rows, columns), (columns, 1))
    svg = plot(plain, K) if K.swizzle else plot(K)
    yield "K in shared memory", scrolling(svg, "picture of K's layout, by bank")


def _of_comparison(found: Comparison) -> Iterable[tuple[str, str]]:
    columns = ("", "ms", "TFLOP/s", "MB", "GB/s", "roofline ms", "% of it", "kernel")
    lines = [*found.gemms, *found.sums, *found.fused]
    table = Table.of(found.title, columns, [line_cells(line) for line in lines])
    yield "figures", _table(table)
    times = {line.what: line.seconds * 1e3 for line in (*found.sums, *found.fused[:1])}
    yield "time", scrolling(bars(times, "ms"), "milliseconds of each")
    items = "".join(f"<li>{escape(text)}</li>" for text in notes(found))
    yield "what fusion saves", f"<ul>{items}</ul>"


def _of_diff(found: Diff) -> Iterable[tuple[str, str]]:
    yield "configs", scrolling(f"<pre>{escape(found.heading)}</pre>", "the two configs")
    yield from _tables(found.tables())
    code = f"<pre>{escape(found.sass())}</pre>"
    yield "machine code", scrolling(code, "differences of the main loops' machine code")


def bars(values: dict[str, float], unit: str) -> str:
    """Horizontal bars as SVG, each with its value."""
    picture = Picture()
    left, width, step = 8 * max((len(name) for name in values), default=0) + 10, 420, 26
    largest = max(values.values(), default=0) or 1
    for i, (name, value) in enumerate(values.items()):
        y = i * step
        length = max(1, width * value / largest)
        picture.text(left - 8, y + 17, name, 12, "end")
        picture.rect(left, y + 4, length, step - 8, FILLS[0], f"{name}: {value:,.4g} {unit}")
        picture.text(left + length + 6, y + 17, f"{value:,.4g} {unit}", 12)
    told = ", ".join(f"{name} {value:,.4g} {unit}" for name, value in values.items())
    return picture.to_svg(told)


def scrolling(content: str, label: str) -> str:
    """What may be wider than the window, in a box that scrolls by itself."""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label, quote=True)}">'
        f"{content}</div>"
    )


def _table(table: Table) -> str:
    numbers = [i > 0 and table.is_number(i) for i in range(len(table.columns))]
    kinds = [' class="number"' if number else "" for number in numbers]
    head = ""
    if any(table.columns):
        cells = zip(table.columns, kinds, strict=True)
        texts = (f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in cells)
        head = f"<thead><tr>{''.join(texts)}</tr></thead>"
    caption = f"<caption>{escape(table.note)}</caption>" if table.note else ""
    rows = "".join(_row(row, kinds) for row in table.rows)
    return scrolling(f"<table>{caption}{head}<tbody>{rows}</tbody></table>", table.title)


def _row(row: tuple[Any, ...], kinds: list[str]) -> str:
    first, *rest = row
    cells = "".join(
        f"<td{kind}>{escape(text)}</td>" for text, kind in zip(rest, kinds[1:], strict=True)
    )
    return f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'


def _id(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower())
