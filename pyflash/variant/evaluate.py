"""An expression over arrays of numpy: what every other form of a variant has to agree with.

Indices are int32, scores float32; integers wrap. An index of a tensor counts from the end where it
is negative, and is clamped to the tensor where it is outside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pyflash.variant.expr import Node
from pyflash.variant.scalars import Scalar, rounded_to, signature
from pyflash.variant.value import Variant
from pyflash.variant.walk import fold

_TYPES = {
    Scalar.BOOL: np.bool_,
    Scalar.I32: np.int32,
    Scalar.I64: np.int64,
    Scalar.F32: np.float32,
}
_erf = np.frompyfunc(math.erf, 1, 1)
# In float64, then rounded once.
_FUNCTIONS: dict[str, Any] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sin": np.sin,
    "cos": np.cos,
    "erf": lambda x: np.asarray(_erf(x), np.float64),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "floor": np.floor,
}
_OPERATORS: dict[str, Any] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "//": lambda a, b: np.where(b == 0, b, np.floor_divide(a, np.where(b == 0, 1, b))),
    "%": lambda a, b: np.where(b == 0, b, np.remainder(a, np.where(b == 0, 1, b))),
    "<<": lambda a, n: np.where(_in_width(a, n), a << _within(a, n), a.dtype.type(0)),
    ">>": lambda a, n: np.where(_in_width(a, n), a >> _within(a, n), np.where(a < 0, -1, 0)),
    "&": np.bitwise_and,
    "|": np.bitwise_or,
    "^": np.bitwise_xor,
    "~": np.invert,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "abs": np.abs,
    "where": np.where,
    "clamp": lambda x, low, high: np.minimum(np.maximum(x, low), high),
}


def evaluate(variant: Variant, values: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Scores and mask of pairs, by values of the score, the indices and the parameters by name,
    arrays that broadcast.

    Raises IndexError where an index of a tensor is outside of it: in the mask at all, in the score
    at a pair that the mask shows.
    """
    strays: list[tuple[Node, np.ndarray]] = []
    mask = node_value(variant.mask, values, strays)
    _check_inside(strays, np.asarray(True))
    strays.clear()
    score = node_value(variant.score, values, strays)
    _check_inside(strays, mask)
    return np.broadcast_arrays(score, mask)  # type: ignore[return-value]


def node_value(
    root: Node, values: Mapping[str, Any], strays: list[tuple[Node, np.ndarray]] | None = None
) -> np.ndarray:
    """The value of a node. Loads with an index outside of the tensor are added to `strays`, with
    where they are."""
    found = [] if strays is None else strays
    with np.errstate(all="ignore"):
        return fold(root, lambda node, args: _value(node, args, values, found))


def _value(
    node: Node,
    args: tuple[np.ndarray, ...],
    values: Mapping[str, Any],
    strays: list[tuple[Node, np.ndarray]],
) -> np.ndarray:
    kind = _TYPES[node.kind]
    if node.op == "constant":
        return np.asarray(node.data, kind)
    if node.op == "index":
        return np.asarray(values[node.data], kind)
    if node.op == "load":
        table = np.asarray(values[node.data.name])
        if table.ndim != len(args):
            raise ValueError(f"{node.data.name} has {table.ndim} axes: expected {node.data}")
        return _element(node, table, args, strays).astype(kind)
    types, _ = signature(node.op, tuple(arg.kind for arg in node.args))
    operands = [_converted(arg, wanted) for arg, wanted in zip(args, types, strict=True)]
    if node.op in _FUNCTIONS:
        return np.asarray(_FUNCTIONS[node.op](operands[0].astype(np.float64))).astype(kind)
    if node.op in _OPERATORS:
        return np.asarray(_OPERATORS[node.op](*operands)).astype(kind)
    if node.op in ("f16", "bf16"):
        nearest = np.frompyfunc(lambda x: rounded_to(node.op, float(x)), 1, 1)
        return np.asarray(nearest(operands[0])).astype(kind)
    return _converted(operands[0], node.kind)


def _converted(array: np.ndarray, kind: Scalar) -> np.ndarray:
    if array.dtype == np.float32 and kind.is_integer:
        wide = np.nan_to_num(np.trunc(array.astype(np.float64)), nan=0)
        end = -float(kind.least)
        inside = np.clip(wide, kind.least, np.nextafter(end, 0)).astype(np.int64)
        return np.where(wide >= end, kind.greatest, inside).astype(_TYPES[kind])
    return array.astype(_TYPES[kind])


def _element(
    node: Node,
    table: np.ndarray,
    indices: tuple[np.ndarray, ...],
    strays: list[tuple[Node, np.ndarray]],
) -> np.ndarray:
    if not indices:
        return table
    if 0 in table.shape:
        raise IndexError(f"{node.data.name} has no elements: expected some in each axis")
    inside = []
    outside: np.ndarray = np.zeros((), bool)
    for position, extent in zip(indices, table.shape, strict=True):
        position = position.astype(np.int64)
        position = np.where(position < 0, position + extent, position)
        outside = outside | (position < 0) | (position >= extent)
        inside.append(np.clip(position, 0, extent - 1))
    if outside.any():
        strays.append((node, outside))
    return table[tuple(np.broadcast_arrays(*inside))]


def _check_inside(strays: list[tuple[Node, np.ndarray]], visible: np.ndarray) -> None:
    for node, outside in strays:
        if (outside & visible).any():
            raise IndexError(
                f"{node} is outside of {node.data.name} at a pair that counts: expected an index "
                "inside, clamp it"
            )


def _in_width(array: np.ndarray, amount: np.ndarray) -> np.ndarray:
    return (amount >= 0) & (amount < 8 * array.dtype.itemsize)


def _within(array: np.ndarray, amount: np.ndarray) -> np.ndarray:
    return np.clip(amount, 0, 8 * array.dtype.itemsize - 1)
