"""Pictures as SVG text: sized by their content, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from markupsafe import Markup

from pyflash.ui.markup import element

# Eight fills that tell apart, also in grey by the text on them; dark text is readable on each.
FILLS = (
    "#9ecae1", "#fdbe85", "#a1d99b", "#fc9fb0", "#c7b9e2", "#ffe680", "#8fd6cb", "#d9c3a9",
)  # fmt: skip
INK = "#16181d"
XMLNS = "http://www.w3.org/2000/svg"
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
# The style of text of the classes t and s, on light and dark pages.
THEME = Markup(
    ".t{fill:#16181d}.s{fill:#4a4f5a}"
    "@media (prefers-color-scheme:dark){.t{fill:#eceef2}.s{fill:#b4bac6}}"
)


@dataclass
class Picture:
    """Elements at coordinates in pixels; its size grows with what is put on it."""

    elements: list[Markup] = field(default_factory=list)
    width: float = 0
    height: float = 0

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str, title: str = "",
        href: str = "",
    ) -> None:  # fmt: skip
        """`href`: where a click leads."""
        inside = [element("title", title)] if title else []
        drawn = element("rect", *inside, **_box(x, y, width, height), fill=fill)
        if href:
            drawn = element("a", drawn, href=href, aria_label=title)
        self._put(drawn, x + width, y + height)

    def frame(self, x: float, y: float, width: float, height: float) -> None:
        """An outline around cells."""
        self._put(
            element("rect", **_box(x, y, width, height), fill="none", stroke=INK, stroke_width=3),
            x + width + 2,
            y + height + 2,
        )

    def text(
        self, x: float, y: float, text: str, size: float = 11, anchor: str = "start",
        kind: str = "t", bold: bool = False,
    ) -> None:  # fmt: skip
        """`kind`: "t" for text, "s" for what is less important, "c" for text on a cell."""
        fill = {"fill": INK} if kind == "c" else {"class": kind}
        ends = x + {"start": 1.0, "middle": 0.5, "end": 0.0}[anchor] * 0.61 * size * len(text)
        look = {"font_size": f"{size:g}", "text_anchor": anchor}
        look |= {"font_weight": 600 if bold else None, **fill}
        written = element("text", text, x=f"{x:g}", y=f"{y:g}", **look)
        self._put(written, ends, y + 0.3 * size)

    def place(self, other: Picture, x: float, y: float) -> None:
        """All of another picture, moved."""
        self._put(
            element("g", *other.elements, transform=f"translate({x:g},{y:g})"),
            x + other.width,
            y + other.height,
        )

    def to_svg(self, label: str) -> Markup:
        """A whole document; `label` is what it shows, for those who do not see it."""
        width, height = round(self.width) + 1, round(self.height) + 1
        return element(
            "svg", element("style", THEME), *self.elements, xmlns=XMLNS,
            viewBox=f"0 0 {width} {height}", width=width, height=height,
            style="max-width:100%;height:auto", font_family=FONT, role="img", aria_label=label,
        )  # fmt: skip

    def _put(self, markup: Markup, right: float, bottom: float) -> None:
        self.elements.append(markup)
        self.width = max(self.width, right)
        self.height = max(self.height, bottom)


def _box(x: float, y: float, width: float, height: float) -> dict[str, str]:
    return {"x": f"{x:g}", "y": f"{y:g}", "width": f"{width:g}", "height": f"{height:g}"}


def side_by_side(pictures: Iterable[Picture], gap: float = 36) -> Picture:
    """Left to right, their tops in line."""
    whole = Picture()
    x = 0.0
    for picture in pictures:
        whole.place(picture, x, 0)
        x += picture.width + gap
    return whole
