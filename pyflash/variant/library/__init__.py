"""Named variants, a file each: the formula, its source, the text, a reference of one pair in plain
Python, and an example of its parameters.

    TEXT = "causal: s where k <= q + k_len - q_len"
    SOURCE = "..."
    def example(problem): values of the parameters by name, where it has any
    def reference(at, **values): the score of a pair, None where it is hidden
"""

from __future__ import annotations

import difflib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from pyflash.config.words import shown
from pyflash.variant.parser import parse
from pyflash.variant.tiles import Problem
from pyflash.variant.value import Variant


@dataclass(frozen=True)
class Entry:
    """A file of this folder."""

    variant: Variant
    formula: str
    source: str
    reference: Callable[..., float | None]
    _example: Callable[[Problem], Mapping[str, Any]] | None

    @property
    def name(self) -> str:
        return self.variant.name

    def example(self, problem: Problem) -> dict[str, Any]:
        """Values of the parameters: numbers, and nested lists for tensors."""
        return dict(self._example(problem)) if self._example else {}


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


@cache
def named(name: str) -> Entry:
    """Raises ValueError for a name that no file has."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), 1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(names())}"
        raise ValueError(f"no variant is called {shown(name)}: {hint}")
    module = import_module(f"{__name__}.{name}")
    formula = " ".join((module.__doc__ or "").split())
    example = getattr(module, "example", None)
    return Entry(parse(module.TEXT), formula, module.SOURCE, module.reference, example)
