"""Whatever text a report holds, its page and its pictures show it as text: each string field of
each record, and each name in a dictionary, is markup in turn."""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from support.listings import BEST
from support.reports import bench, emulated, pages, tuning

from pyflash.bench import figures
from pyflash.emulator import timeline
from pyflash.layouts import Layout, plot, plot_threads
from pyflash.tuner import picture
from pyflash.ui.html import bars, image, scrolling, table_html
from pyflash.ui.page import Paged, fragment, page
from pyflash.ui.tables import Table

# It ends with a digit, by which a time line colours what consumers do.
HOSTILE = "\"'></title></script><script>alert(1)</script><img src=x onerror='alert(2)'>&lt;0"
REPORTS = {name: functools.cache(lambda name=name: pages()[name]) for name in pages()}

Path = tuple[str, ...]
KEY = "a name"


def strings(value: object, path: Path = ()) -> Iterator[Path]:
    """Where strings are: fields and keys; the members of a list are one place."""
    if type(value) is str:
        yield path
    elif isinstance(value, Mapping):
        if any(type(key) is str for key in value):
            yield (*path, KEY)
        for key, member in value.items():
            yield from strings(member, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for member in value:
            yield from strings(member, (*path, "[]"))
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from strings(getattr(value, field.name), (*path, field.name))


def replaced(value: object, path: Path, text: str) -> object:
    """The value with other text at that place, or with another name."""
    if not path:
        return text if type(value) is str else value
    first, rest = path[0], path[1:]
    if isinstance(value, Mapping):
        if path == (KEY,):
            return {**value, text: list(value.values())[-1]}
        return {
            key: replaced(member, rest, text) if str(key) == first else member
            for key, member in value.items()
        }
    if isinstance(value, (list, tuple)):
        members = (replaced(member, rest, text) for member in value)
        return type(value)(*members) if hasattr(value, "_fields") else type(value)(members)
    if not hasattr(value, first):
        return value
    return dataclasses.replace(value, **{first: replaced(getattr(value, first), rest, text)})


class Tags(HTMLParser):
    """The tags of a page, each with the names of its attributes; the pictures in it, too."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[tuple[str, tuple[str, ...]]] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.found.add((tag, tuple(sorted(name for name, _ in attributes))))
        for name, value in attributes:
            assert not name.startswith("on")
            if name in ("href", "src"):
                assert value.startswith(("#", "data:image/svg+xml;base64,"))
            if value and value.startswith("data:image/svg+xml;base64,"):
                self.found |= tags_of_svg(base64.b64decode(value.partition(",")[2]).decode())


def tags_of_svg(text: str) -> set[tuple[str, tuple[str, ...]]]:
    """The tags of a document by itself, which has to be well formed."""
    found = set()
    for element in ElementTree.fromstring(text).iter():
        assert not any(name.startswith("on") for name in element.attrib)
        found.add((element.tag.rpartition("}")[2], tuple(sorted(element.attrib))))
    return found


# What is left of markup where it is not escaped.
LEAKS = re.compile("<script|<img src=x")


def places() -> list:
    return list(_places())


def _places():
    for name, report in pages().items():
        for path in dict.fromkeys(strings(report)):
            yield pytest.param(name, path, id=f"{name} {'.'.join(path)}")


@pytest.fixture(scope="module")
def tags():
    """Every tag of every page as it should be."""
    return set().union(*(Tags(page(report)).found for report in pages().values()))


@functools.cache
def page_with(name: str, path: Path) -> str:
    """A report's page with markup at that place."""
    return page(replaced(REPORTS[name](), path, HOSTILE))


@pytest.mark.parametrize(("name", "path"), places())
def test_a_string_of_a_report_is_text_on_its_page(name, path, tags):
    try:
        text = page_with(name, path)
    except (ValueError, KeyError, AttributeError, StopIteration):
        return  # such as of a config that does not parse: no page
    assert not LEAKS.search(text)
    found = Tags(text).found
    assert {tag for tag, _ in found} <= {tag for tag, _ in tags}
    assert found - {("a", ("href",))} <= tags


SHOWN = {
    "inspect": {"violations.[]", "missing.layouts", "phases.a name"},
    "compare": {"title", "refused.[]", "gemms.[].kernel"},
    "diff": {"configs.[]", "features"},
    "config": {"on.a name"},
    "space": {"refused.a name"},
    "ladder": {"problem", "missing.traffic", "missing.a name", "steps.[].adds"},
    "bench": {"records.[].environment.device", "records.[].contender", "records.[].status",
              "records.[].what", "records.[].environment.a name"},
    "tune": {"name", "records.[].gpu", "records.[].reason", "records.[].refused.a name"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "path"), [(name, path) for name, of in SHOWN.items() for path in sorted(of)]
)
def test_what_is_tried_reaches_the_page(name, path):
    text = page_with(name, tuple(path.split(".")))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


@pytest.mark.parametrize("name", REPORTS)
def test_a_notebook_shows_the_same(name):
    report = REPORTS[name]()
    body = re.search(r"<main>\n(.*)\n</main>", page(report), re.DOTALL).group(1)
    assert fragment(report).endswith(f"{body}</div>")


def test_what_a_report_of_a_user_says_is_escaped():
    class Report(Paged):
        page_title = HOSTILE

        def sections(self):
            yield HOSTILE, HOSTILE
            yield HOSTILE, "a heading comes twice"

    text = page(Report())
    assert not LEAKS.search(text)
    assert text.count("<section") == 2
    assert "a heading comes twice" in text
    ids = re.findall(r'<section id="([^"]*)"', text)
    assert ids == re.findall(r'<a href="#([^"]*)"', text)
    assert len(set(ids)) == 2


PARTS = {
    "scrolling": lambda text: scrolling(text, text),
    "bars": lambda text: bars({text: 1.0}, text),
    "image": lambda text: image("<svg/>", text),
    "table": lambda text: table_html(Table(text, (text, text), ((text, text),), text)),
    "plot": lambda text: plot(Layout((8, 64), (64, 1)), title=text),
    "threads": lambda text: plot_threads(Layout((8, 8), (8, 1)), (8, 8), title=text),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_escape_what_they_are_given(name):
    text = PARTS[name](HOSTILE)
    assert not LEAKS.search(text)
    plain = "plain 0 ".ljust(len(HOSTILE), ".")  # a long cell has a class
    assert Tags(text).found == Tags(PARTS[name](plain)).found
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize("path", dict.fromkeys(strings(emulated())), ids=".".join)
def test_a_time_line_escapes(path):
    plain = tags_of_svg(timeline.as_svg(emulated()))
    try:
        svg = timeline.as_svg(replaced(emulated(), path, HOSTILE))
    except (KeyError, IndexError):
        return
    assert not LEAKS.search(svg)
    assert tags_of_svg(svg) <= plain
    if path in (("config",), ("roles", "[]"), ("mbarriers", "[]"), ("timeline", "[]", "site")):
        assert "&lt;script&gt;" in svg


@pytest.mark.parametrize("path", dict.fromkeys(strings(bench())), ids=".".join)
def test_figures_escape(path):
    pytest.importorskip("matplotlib")
    plain = {tag for tag, _ in tags_of_svg(figures.to_svg(figures.speed(bench().records)))}
    try:
        svg = figures.to_svg(figures.speed(replaced(bench(), path, HOSTILE).records))
    except (ValueError, KeyError):
        return
    assert not LEAKS.search(svg)
    assert {tag for tag, _ in tags_of_svg(svg)} <= plain


def test_a_picture_of_a_journal_escapes(tmp_path):
    pytest.importorskip("matplotlib")
    journal = tmp_path / "hostile <script>alert(1)<script>.jsonl"
    journal.write_text("".join(f"{json.dumps(one)}\n" for one in tuning().records))
    picture.draw(journal, tmp_path / "picture.svg")
    svg = (tmp_path / "picture.svg").read_text()
    assert not LEAKS.search(svg)
    assert "script" not in {tag for tag, _ in tags_of_svg(svg)}


def test_a_layout_and_a_config_in_a_notebook():
    assert tags_of_svg(Layout((8, 64), (64, 1))._repr_svg_())
    assert "&lt;Space of" in pages()["space"].space._repr_html_()
    assert Tags(BEST._repr_html_()).found
