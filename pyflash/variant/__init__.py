"""Which attention is computed, as a value: a score function and a mask of one pair of a query and a
key, with parameters.

No kernel takes a variant yet. Nothing here imports torch, but for tracing functions of it.
"""

from __future__ import annotations

from pyflash.variant.dsl import Parameters, V, define
from pyflash.variant.expr import Node, Param
from pyflash.variant.parser import TextError, parse
from pyflash.variant.scalars import Scalar
from pyflash.variant.value import Variant

__all__ = ["Node", "Param", "Parameters", "Scalar", "TextError", "V", "Variant", "define", "parse"]
