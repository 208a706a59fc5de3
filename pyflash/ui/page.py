"""One self-contained HTML page for a report: no network, no script.

    Path("config.html").write_text(page(inspect(config, "sm_90")))

It follows the browser's light or dark theme. What is wider than the window scrolls by itself, by
keyboard too, so that the page never does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from markupsafe import Markup

from pyflash.ui.html import STYLE, bullets, notebook, table_html
from pyflash.ui.markup import element
from pyflash.ui.tables import Table

Sections = Iterable[tuple[str, Markup]]  # (heading, HTML); what is not Markup is text, and escaped

_PAGE = Markup("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}
body {{ margin: 0; }}
main {{ max-width: 80rem; margin: 0 auto; padding: 1rem; box-sizing: border-box; }}
</style>
</head>
<body class="pyflash">
<main>
{body}
</main>
</body>
</html>
""")


class Paged(ABC):
    """A report with the sections of its page, which is also its view in a notebook."""

    __slots__ = ()

    @property
    @abstractmethod
    def page_title(self) -> str: ...

    @property
    def answer(self) -> str:
        """What the report says, in a sentence, above everything else; "": nothing."""
        return ""

    @abstractmethod
    def sections(self) -> Sections: ...

    def _repr_html_(self) -> str:
        return fragment(self)


def page(report: Paged) -> Markup:
    """The whole page. Raises TypeError for what is no report."""
    body = _body(report)
    return _PAGE.format(title=report.page_title, style=STYLE, body=body)


def fragment(report: Paged) -> Markup:
    """The same for a notebook's cell."""
    return notebook(_body(report))


def _body(report: Paged) -> Markup:
    if not isinstance(report, Paged):
        raise TypeError(f"no page for {type(report).__name__}: expected a report, a Paged")
    sections = [
        (_id(i, name), name, content) for i, (name, content) in enumerate(report.sections())
    ]
    links = bullets(element("a", name, href=f"#{place}") for place, name, _ in sections)
    parts = [
        element("h1", report.page_title),
        *([element("p", report.answer, class_="answer")] if report.answer else []),
        element("details", element("summary", "Contents"), element("nav", links)),
        element(
            "div",
            *(
                element("section", element("h2", name), content, id=place)
                for place, name, content in sections
            ),
            class_="sections",
        ),
    ]
    return Markup("\n").join(parts)


def tables_as_sections(tables: Iterable[Table]) -> Sections:
    for table in tables:
        yield table.title, table_html(table)


def _id(i: int, name: str) -> str:
    """The number tells two sections of one heading apart."""
    return "".join(c if c.isalnum() else "-" for c in f"{name.lower()}-{i}")
