"""The variant of a state: what is computed, and which tiles its mask hides."""

from __future__ import annotations

from functools import lru_cache

from markupsafe import Markup

from pyflash.explore.state import State
from pyflash.ui.html import scrolling, table_html
from pyflash.ui.markup import element, joined
from pyflash.ui.tables import Table
from pyflash.ui.variants import variant_of
from pyflash.variant.tiles import Problem, tiles

_TILES = 8  # in each direction of the picture
_MARKS = {"none": "·", "some": "▒", "all": "█"}


def variant_section(state: State) -> Markup:
    variant, entry = variant_of(state.variant)
    pairs = {"text": str(variant), "parameters": ", ".join(map(str, variant.params)) or "none"}
    if entry:
        pairs |= {"formula": entry.formula, "source": entry.source}
    family = state.config.family
    refusal = f"Kernels of {family} take no variant: choose another family."
    takes = [] if family.variant_header else [element("p", refusal, class_="warn")]
    drawn = _mask(state.variant, state.config.B_r, state.config.B_c)
    return joined(*takes, table_html(Table.of_pairs(variant.name, pairs)), drawn)


@lru_cache(maxsize=256)
def _mask(text: str, block_q: int, block_k: int) -> Markup:
    """The tiles of a small problem, with the values of the variant's example. Nothing is assumed
    about a parameter without a value."""
    variant, entry = variant_of(text)
    problem = Problem(_TILES * block_q, _TILES * block_k, 1, 1)
    values = entry.example(problem) if entry else {}
    judged = tiles(variant.mask, problem, (block_q, block_k), values, 0, 0)
    counts = {kind: sum(row.count(kind) for row in judged) for kind in _MARKS}
    legend = ", ".join(f"{_MARKS[kind]} {n} show {kind}" for kind, n in counts.items())
    lines = ["".join(2 * _MARKS[kind] for kind in row) for row in judged]
    note = (
        f"Tiles of {block_q} x {block_k}, of {problem.q_len} queries and {problem.k_len} keys, by "
        f"the pairs that the mask shows: {legend}."
    )
    picture = element("pre", "\n".join(lines), class_="tiles")
    return joined(element("p", note), scrolling(picture, "tiles of the mask"))
