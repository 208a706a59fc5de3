"""What every page has to be: whole, self-contained HTML whose links lead somewhere."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from html.parser import HTMLParser

_SVG = re.compile(r"<svg .*?</svg>", re.DOTALL)
_VOID = {"br", "hr", "img", "input", "link", "meta"}


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.headings: list[str] = []
        self.text_of: dict[str, int] = {}  # characters, by the section's id
        self._section = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags[tag] += 1
        if tag not in _VOID:
            self.open.append(tag)
        if identity := values.get("id"):
            self.ids[identity] += 1
        if tag == "section":
            self._section = values["id"]
            self.text_of.setdefault(self._section, 0)
        if tag == "img":
            self.text_of[self._section] += len(values["alt"])
        self.links += [values[name] for name in ("href", "src") if values.get(name)]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        assert tag in _VOID, f"<{tag}/> stays open in HTML"

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if "h2" in self.open:
            self.headings.append(data)
        elif "section" in self.open:
            self.text_of[self._section] += len(data.strip())


def check_page(text: str, served: tuple[str, ...] = ()) -> list[str]:
    """The headings of a page's sections. Raises AssertionError for what a browser would guess at:
    tags that do not nest, an id twice, a link to nothing or to elsewhere, an empty section.
    `served`: how the links begin that are served beside the page."""
    assert text.startswith("<!doctype html>")
    for svg in _SVG.findall(text):
        ElementTree.fromstring(svg)
    page = _Page()
    page.feed(_SVG.sub("a picture", text))
    page.close()
    assert page.open == []
    assert [page.tags[tag] for tag in ("html", "title", "main", "h1")] == [1, 1, 1, 1]
    assert {identity: n for identity, n in page.ids.items() if n > 1} == {}
    for link in page.links:
        inside = link.startswith("data:") or (link[0] == "#" and link[1:] in page.ids)
        assert inside or link.startswith(served), link
    assert page.headings
    assert [section for section, characters in page.text_of.items() if not characters] == []
    return page.headings
