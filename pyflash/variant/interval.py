"""Interval arithmetic of expressions: bounds of a result by bounds of what it reads.

A bool has three values: never, always, maybe. Nothing is assumed of functions that GPUs
approximate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyflash.variant.arithmetic import applied
from pyflash.variant.expr import Node
from pyflash.variant.scalars import BOOL, COMPARISONS, F32, Scalar, signature
from pyflash.variant.walk import fold

INF = float("inf")
# What callers have to keep: no extent, offset or position is larger.
MAX_POSITION = 1 << 28


@dataclass(frozen=True, slots=True)
class Bounds:
    """low <= value <= high, or the value is NaN where `nan`. Of a bool: 0 or 1."""

    low: Any
    high: Any
    nan: bool = False

    def __contains__(self, value: Any) -> bool:
        return self.nan if value != value else self.low <= value <= self.high

    @property
    def is_one(self) -> bool:
        return self.low == self.high and not self.nan

    def union(self, other: Bounds) -> Bounds:
        nan = self.nan or other.nan
        return Bounds(min(self.low, other.low), max(self.high, other.high), nan)


NEVER, ALWAYS, MAYBE = Bounds(0, 0), Bounds(1, 1), Bounds(0, 1)
Leaf = Callable[[Node, tuple[Bounds, ...]], Bounds]


def whole(kind: Scalar) -> Bounds:
    """All that a type has."""
    return Bounds(-INF, INF, True) if kind is F32 else Bounds(kind.least, kind.greatest)


def bounds(root: Node, leaf: Leaf) -> Bounds:
    """The bounds of a node, by those of indices and loads."""

    def rule(node: Node, args: tuple[Bounds, ...]) -> Bounds:
        if node.op == "constant":
            return Bounds(node.data, node.data)
        if node.op in ("index", "load"):
            return leaf(node, args)
        types, _ = signature(node.op, tuple(arg.kind for arg in node.args))
        operands = [
            _converted(arg, child.kind, wanted)
            for arg, child, wanted in zip(args, node.args, types, strict=True)
        ]
        return _applied(node.op, types[-1], operands)

    return fold(root, rule)


def anywhere(node: Node, _: tuple[Bounds, ...] = ()) -> Bounds:
    """A leaf's bounds in every problem and with every parameter."""
    if node.op == "index" and node.data != "s":
        return Bounds(0, MAX_POSITION)
    return whole(node.kind)


def _converted(arg: Bounds, kind: Scalar, wanted: Scalar) -> Bounds:
    return arg if kind is wanted else _applied(wanted.value, kind, [arg])


def _applied(op: str, kind: Scalar, args: list[Bounds]) -> Bounds:
    """By the type of the operands."""
    if op == "where":
        condition, yes, no = args
        if condition.is_one:
            return yes if condition.low else no
        return yes.union(no)
    if op in COMPARISONS:
        return _compared(op, *args)
    if op in ("bool", "i32", "i64", "f32"):
        return _cast(Scalar(op), kind, args[0])
    if all(arg.is_one for arg in args) and kind is not F32:
        return _one(applied(op, kind, *(arg.low for arg in args)))
    if kind is BOOL:
        return _logical(op, args)
    return _of_floats(op, args) if kind is F32 else _of_integers(op, kind, args)


def _one(value: Any) -> Bounds:
    return Bounds(int(value), int(value))


def _compared(op: str, a: Bounds, b: Bounds) -> Bounds:
    if op in (">", ">="):
        return _compared(op.replace(">", "<"), b, a)
    if op == "!=":
        equal = _compared("==", a, b)
        return Bounds(1 - equal.high, 1 - equal.low)
    nan = a.nan or b.nan
    if op == "==":
        if a.high < b.low or b.high < a.low:
            return NEVER
        return ALWAYS if a.is_one and b.is_one else MAYBE
    strict = op == "<"
    if not nan and (a.high < b.low if strict else a.high <= b.low):
        return ALWAYS
    if a.low >= b.high if strict else a.low > b.high:
        return NEVER
    return MAYBE


def _cast(wanted: Scalar, kind: Scalar, arg: Bounds) -> Bounds:
    if wanted is BOOL:
        if arg.low == arg.high == 0 and not arg.nan:
            return NEVER
        return MAYBE if 0 in arg else ALWAYS
    if kind.is_integer and wanted.is_integer:
        return _checked(wanted, (arg.low, arg.high))
    low, high = (applied(wanted.value, kind, end) for end in (arg.low, arg.high))
    if wanted is F32:
        return Bounds(low, high, arg.nan)
    found = Bounds(low, high)
    return found.union(Bounds(0, 0)) if arg.nan else found


def _logical(op: str, args: list[Bounds]) -> Bounds:
    """The bounds of two truth values, one of which at least may be either."""
    if op == "&":
        return Bounds(min(a.low for a in args), min(a.high for a in args))
    if op == "|":
        return Bounds(max(a.low for a in args), max(a.high for a in args))
    return MAYBE


def _checked(kind: Scalar, values: Sequence[int]) -> Bounds:
    low, high = min(values), max(values)
    return Bounds(low, high) if kind.holds(low) and kind.holds(high) else whole(kind)


def _of_integers(op: str, kind: Scalar, args: list[Bounds]) -> Bounds:
    a, b = args[0], args[-1]
    if op == "neg":
        return _checked(kind, (-a.low, -a.high))
    if op == "~":
        return Bounds(~a.high, ~a.low)
    if op == "abs":
        ends = [abs(a.low), abs(a.high)]
        return _checked(kind, [*ends, 0] if 0 in a else ends)
    if op in ("min", "max", "clamp"):
        return _ordered(op, kind, args)
    if op == "+":
        return _checked(kind, (a.low + b.low, a.high + b.high))
    if op == "-":
        return _checked(kind, (a.low - b.high, a.high - b.low))
    if op == "*":
        return _checked(kind, [x * y for x in (a.low, a.high) for y in (b.low, b.high)])
    if op in ("//", "%"):
        return _divided(op, kind, a, b)
    if op in ("<<", ">>"):
        return _shifted(op, kind, a, b)
    if a.low < 0 or b.low < 0:
        return whole(kind)
    if op == "&":
        return Bounds(0, min(a.high, b.high))
    bits = max(a.high, b.high).bit_length()
    return Bounds(max(a.low, b.low) if op == "|" else 0, (1 << bits) - 1)


def _ordered(op: str, kind: Scalar, args: list[Bounds]) -> Bounds:
    """min, max and clamp rise with each operand. NaN wins."""
    low, high = ([getattr(arg, end) for arg in args] for end in ("low", "high"))
    return Bounds(applied(op, kind, *low), applied(op, kind, *high), any(arg.nan for arg in args))


def _divided(op: str, kind: Scalar, a: Bounds, b: Bounds) -> Bounds:
    parts = [Bounds(max(b.low, 1), b.high)] if b.high > 0 else []
    parts += [Bounds(b.low, min(b.high, -1))] if b.low < 0 else []
    found = [0] if 0 in b else []
    for part in parts:
        ends = (part.low, part.high)
        if op == "//":
            found += [x // y for x in (a.low, a.high) for y in ends]
        elif part.is_one and a.low // part.low == a.high // part.low:
            found += [a.low % part.low, a.high % part.low]  # within one period
        elif a.low >= 0 and a.high < part.low:
            found += [a.low, a.high]
        else:
            found += [0, part.high - 1 if part.low > 0 else part.low + 1]
    return _checked(kind, found)


def _shifted(op: str, kind: Scalar, a: Bounds, b: Bounds) -> Bounds:
    if not b.is_one:
        return whole(kind)
    amount = b.low if 0 <= b.low < kind.bits else kind.bits
    if op == "<<":
        return _checked(kind, (a.low << amount, a.high << amount))
    return Bounds(a.low >> amount, a.high >> amount)


def _of_floats(op: str, args: list[Bounds]) -> Bounds:
    """Each result is rounded, and rounding keeps the order."""
    a, b = args[0], args[-1]
    nan = any(arg.nan for arg in args)
    if op in ("min", "max", "clamp"):
        return _ordered(op, F32, args)
    if op in ("floor", "f16", "bf16"):
        ends = [applied(op, F32, a.low), applied(op, F32, a.high)]
    elif op == "neg":
        ends = [-a.high, -a.low]
    elif op == "abs":
        ends = [abs(a.low), abs(a.high), *([0.0] if 0 in a else [])]
    elif op == "+":
        ends = [applied("+", F32, a.low, b.low), applied("+", F32, a.high, b.high)]
        ends += [applied("+", F32, a.low, b.high), applied("+", F32, a.high, b.low)]
    elif op == "-":
        return _of_floats("+", [a, Bounds(-b.high, -b.low, b.nan)])
    elif op == "*" and not _zero_by_infinity(a, b) and not _zero_by_infinity(b, a):
        ends = [applied("*", F32, x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    elif op == "/" and 0 not in b:
        ends = [applied("/", F32, x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    else:
        return whole(F32)
    if any(end != end for end in ends):
        return whole(F32)
    return Bounds(min(ends), max(ends), nan)


def _zero_by_infinity(a: Bounds, b: Bounds) -> bool:
    return 0 in a and INF in (b.high, -b.low)
