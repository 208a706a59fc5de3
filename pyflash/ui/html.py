"""The parts of pages: tables, bars, pictures, as self-contained HTML."""

from __future__ import annotations

import base64
from collections.abc import Iterable

from markupsafe import Markup

from pyflash.ui.markup import element
from pyflash.ui.svg import FILLS, Picture
from pyflash.ui.tables import Table

# Contrast of text is at least 7 on both backgrounds.
STYLE = Markup("""
:root { color-scheme: light dark; --ink: #16181d; --soft: #4a4f5a; --back: #ffffff;
  --line: #c9cdd6; --head: #f0f2f6; --warn: #8a1c1c; }
@media (prefers-color-scheme: dark) { :root { --ink: #eceef2; --soft: #b4bac6; --back: #14161b;
  --line: #3d424e; --head: #21252d; --warn: #ffb3b3; } }
.pyflash { color: var(--ink); background: var(--back); font: 15px/1.5 system-ui, sans-serif; }
.pyflash h1 { font-size: 1.35rem; overflow-wrap: anywhere; }
.pyflash h2 { font-size: 1.1rem; margin: 1.7rem 0 .5rem; }
.pyflash h2::first-letter { text-transform: uppercase; }
.pyflash .sections { display: flex; flex-wrap: wrap; column-gap: 3rem; align-items: flex-start; }
.pyflash section { min-width: 0; max-width: 100%; }
.pyflash section:has(form, pre, iframe) { flex: 1 1 100%; }
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
.pyflash .long { white-space: normal; min-width: 16rem; overflow-wrap: anywhere; }
.pyflash .answer { font-size: 1.1rem; max-width: 50rem; }
.pyflash .warn { color: var(--warn); }
.pyflash nav ul { columns: 19rem; padding-left: 1.2rem; margin: .3rem 0; }
.pyflash a { color: inherit; }
.pyflash pre { font-size: .8rem; }
""")


_LONG = 60  # characters of a cell whose lines are broken


def notebook(body: Markup) -> Markup:
    """For a notebook's cell."""
    return element("div", element("style", STYLE), body, class_="pyflash")


def bars(values: dict[str, float], unit: str) -> Markup:
    """Horizontal bars as SVG, each with its value."""
    picture = Picture()
    left, width, step = 8 * max((len(name) for name in values), default=0) + 10, 200, 26
    largest = max(values.values(), default=0) or 1
    for i, (name, value) in enumerate(values.items()):
        y = i * step
        length = max(1, width * value / largest)
        picture.text(left - 8, y + 17, name, 12, "end")
        picture.rect(left, y + 4, length, step - 8, FILLS[0], f"{name}: {value:,.4g} {unit}")
        picture.text(left + length + 6, y + 17, f"{value:,.4g} {unit}", 12)
    told = ", ".join(f"{name} {value:,.4g} {unit}" for name, value in values.items())
    return picture.to_svg(told)


def scrolling(content: Markup, label: str) -> Markup:
    """A box that scrolls by itself, for content wider than the window."""
    return element("div", content, class_="scroll", tabindex=0, role="region", aria_label=label)


def bullets(items: Iterable[object]) -> Markup:
    return element("ul", *(element("li", item) for item in items))


def table_html(table: Table) -> Markup:
    numbers = [i > 0 and table.is_number(i) for i in range(len(table.columns))]
    kinds = ["number" if number else None for number in numbers]
    head = []
    if any(table.columns):
        cells = zip(table.columns, kinds, strict=True)
        names = (element("th", name, scope="col", class_=kind) for name, kind in cells)
        head = [element("thead", element("tr", *names))]
    caption = [element("caption", table.note)] if table.note else []
    rows = element("tbody", *(_row(row, kinds) for row in table.rows))
    return scrolling(element("table", *caption, *head, rows), table.title)


def _row(row: tuple[str, ...], kinds: list[str | None]) -> Markup:
    first, *rest = row
    cells = (
        element("td", text, class_=kind or ("long" if len(text) > _LONG else None))
        for text, kind in zip(rest, kinds[1:], strict=True)
    )
    return element("tr", element("th", first, scope="row"), *cells)


def image(svg: str, alt: str) -> Markup:
    """A whole SVG document as a picture of its own, whose names cannot clash with another's."""
    data = base64.b64encode(svg.encode()).decode()
    return scrolling(element("img", alt=alt, src=f"data:image/svg+xml;base64,{data}"), alt)
