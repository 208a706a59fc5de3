"""What a tuning run measured, beside the state that is shown: each config is a link to its own."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from pyflash.config import KernelConfig
from pyflash.explore.state import State
from pyflash.tuner.journal import read_journal
from pyflash.tuner.picture import seen_in
from pyflash.tuner.problems import WITH, parse_problem, problem_text
from pyflash.ui.html import bullets, scrolling
from pyflash.ui.markup import element, joined
from pyflash.ui.svg import FILLS, Picture

_WIDTH, _HEIGHT, _POINT = 560, 180, 7  # pixels


@dataclass(frozen=True)
class Measured:
    """The samples of a journal: seconds by problem, as `problem_text` writes it, and config."""

    name: str
    problems: dict[str, dict[KernelConfig, float]]

    @classmethod
    def read(cls, path: Path) -> Measured:
        """Raises ValueError for a file that is no journal or holds no sample, OSError for one that
        cannot be read."""
        found: dict[str, dict[KernelConfig, float]] = {}
        for seen in seen_in(read_journal(path)):
            if WITH in seen.name:  # a variant's times are not those of the configs on the page
                continue
            seconds = found.setdefault(problem_text(parse_problem(seen.name, "cpu")), {})
            for kernel, value in seen.seconds.items():
                seconds[kernel.config] = min(value, seconds.get(kernel.config, math.inf))
        if not found:
            raise ValueError(
                f"{path} holds no measured config: expected the journal of a tuning run"
            )
        return cls(path.name, found)

    def start(self, arch: str) -> State:
        """The fastest config for the journal's first problem."""
        text, seconds = next(iter(self.problems.items()))
        return State.of_problem(min(seconds, key=seconds.__getitem__), arch, text)


def measured_of(state: State, measured: Measured) -> Markup:
    """The section of a state."""
    seconds = measured.problems.get(problem_text(state.problem))
    if seconds is None:
        links = [
            element("a", text, href=_fastest(state, text, of).url)
            for text, of in measured.problems.items()
        ]
        text = f"{measured.name} holds no measurement of this problem. It has these:"
        return joined(element("p", text), bullets(links))
    ranked = sorted(seconds.items(), key=lambda item: (item[1], item[0]))
    without = " None has a variant." if state.variant else ""
    return joined(
        element("p", _sentence(state, ranked), without),
        scrolling(_points(state, ranked), "speed of each measured config"),
        element("details", element("summary", "Every measured config"), _table(state, ranked)),
    )


def _fastest(state: State, text: str, seconds: dict[KernelConfig, float]) -> State:
    return State.of_problem(min(seconds, key=seconds.__getitem__), str(state.arch), text)


def _sentence(state: State, ranked: list[tuple[KernelConfig, float]]) -> Markup:
    (best, least), own = ranked[0], dict(ranked).get(state.config.canonical())
    told = "This config was not measured."
    if best == state.config.canonical():
        told = "It is this config."
    elif own is not None:
        told = f"This config took {own * 1e6:,.1f} us, {own / least:.2f} times as long."
    link = element("a", best, href=_with(state, best).url)
    return joined(
        f"The fastest of {len(ranked)} measured configs took {least * 1e6:,.1f} us: ",
        link,
        f". {told}",
    )


def _with(state: State, config: KernelConfig) -> State:
    return dataclasses.replace(state, config=config)


def _points(state: State, ranked: list[tuple[KernelConfig, float]]) -> Markup:
    """From the fastest on the left; each point is a link."""
    picture, left, top = Picture(), 48, 10
    step = (_WIDTH - _POINT) / max(1, len(ranked) - 1)
    least = ranked[0][1]
    for percent in (100, 50, 0):
        y = top + _HEIGHT * (1 - percent / 100)
        picture.text(left - 8, y + _POINT, f"{percent} %", 11, "end", "s")
    for i, (config, seconds) in enumerate(ranked):
        own = config == state.config.canonical()
        told = f"{config}: {seconds * 1e6:,.1f} us{', this config' if own else ''}"
        x, y = left + i * step, top + _HEIGHT * (1 - least / seconds)
        size = _POINT * (2 if own else 1)
        picture.rect(x, y, size, size, FILLS[1 if own else 0], told, _with(state, config).url)
    label = "speed, % of the fastest; a point for each config leads to it"
    picture.text(left, top + _HEIGHT + 26, label, 11, kind="s")
    return picture.to_svg(label)


def _table(state: State, ranked: list[tuple[KernelConfig, float]]) -> Markup:
    least = ranked[0][1]
    rows = [
        element(
            "tr",
            element("th", element("a", config, href=_with(state, config).url), scope="row"),
            element("td", f"{seconds * 1e6:,.1f}", class_="number"),
            element("td", f"{100 * least / seconds:.1f}", class_="number"),
        )
        for config, seconds in ranked
    ]
    names = (("config", None), ("us", "number"), ("% of the fastest", "number"))
    head = (element("th", name, scope="col", class_=kind) for name, kind in names)
    table = element("table", element("thead", element("tr", *head)), element("tbody", *rows))
    return scrolling(table, "every measured config")
