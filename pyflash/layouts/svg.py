"""Pictures as SVG text: sized by their content, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape

# Eight fills that tell apart, also in grey by the text on them; dark text is readable on each.
FILLS = (
    "#9ecae1", "#fdbe85", "#a1d99b", "#fc9fb0", "#c7b9e2", "#ffe680", "#8fd6cb", "#d9c3a9",
)  # fmt: skip
INK = "#16181d"
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
_STYLE = (
    ".t{fill:#16181d}.s{fill:#4a4f5a}"
    "@media (prefers-color-scheme:dark){.t{fill:#eceef2}.s{fill:#b4bac6}}"
)


@dataclass
class Picture:
    """Elements at coordinates in pixels; its size grows with what is put on it."""

    elements: list[str] = field(default_factory=list)
    width: float = 0
    height: float = 0

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str, title: str = ""
    ) -> None:
        inside = f"<title>{escape(title)}</title>" if title else ""
        self._put(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}">'
            f"{inside}</rect>",
            x + width,
            y + height,
        )

    def frame(self, x: float, y: float, width: float, height: float) -> None:
        """An outline around cells."""
        self._put(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            f'fill="none" stroke="{INK}" stroke-width="3"/>',
            x + width + 2,
            y + height + 2,
        )

    def text(
        self, x: float, y: float, text: str, size: float = 11, anchor: str = "start",
        kind: str = "t", bold: bool = False,
    ) -> None:  # fmt: skip
        """`kind`: "t" for text, "s" for what is less important, "c" for text on a cell."""
        weight = ' font-weight="600"' if bold else ""
        fill = f' fill="{INK}"' if kind == "c" else f' class="{kind}"'
        ends = x + {"start": 1.0, "middle": 0.5, "end": 0.0}[anchor] * 0.61 * size * len(text)
        self._put(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}"{weight}{fill}>'
            f"{escape(text)}</text>",
            ends,
            y + 0.3 * size,
        )

    def place(self, other: Picture, x: float, y: float) -> None:
        """All of another picture, moved."""
        elements = "".join(other.elements)
        self._put(
            f'<g transform="translate({x:g},{y:g})">{elements}</g>',
            x + other.width,
            y + other.height,
        )

    def to_svg(self, label: str) -> str:
        """A whole document; `label` is what it shows, for those who do not see it."""
        width, height = round(self.width) + 1, round(self.height) + 1
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" style="max-width:100%;height:auto" '
            f'font-family="{FONT}" role="img" aria-label="{escape(label, quote=True)}">'
            f"<style>{_STYLE}</style>{''.join(self.elements)}</svg>"
        )

    def _put(self, element: str, right: float, bottom: float) -> None:
        self.elements.append(element)
        self.width = max(self.width, right)
        self.height = max(self.height, bottom)


def side_by_side(pictures: Iterable[Picture], gap: float = 36) -> Picture:
    """Left to right, their tops in line."""
    whole = Picture()
    x = 0.0
    for picture in pictures:
        whole.place(picture, x, 0)
        x += picture.width + gap
    return whole
