"""Which attention is computed, as a value: a score function and a mask of one pair of a query and a
key, with parameters.

Nothing here imports torch, but for tracing functions of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyflash.variant.bound import Bound, bind
from pyflash.variant.dsl import Parameters, V, define
from pyflash.variant.expr import Node, Param
from pyflash.variant.parser import TextError, parse
from pyflash.variant.scalars import Scalar
from pyflash.variant.value import Variant


def trace(
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Bound:
    """The variant of FlexAttention's functions, and the values that they capture: see
    pyflash.variant.tracing. Imports torch."""
    from pyflash.variant import tracing

    return tracing.trace(score_mod, mask_mod, name)


__all__ = [
    "Bound",
    "Node",
    "Param",
    "Parameters",
    "Scalar",
    "TextError",
    "V",
    "Variant",
    "bind",
    "define",
    "parse",
    "trace",
]
