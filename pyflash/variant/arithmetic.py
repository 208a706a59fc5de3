"""Operations on Python's numbers, with the results of the types that they stand for."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from pyflash.variant.scalars import BOOL, CASTS, F32, ROUNDINGS, Scalar, converted, rounded
from pyflash.variant.scalars import rounded_to as nearest

INF, NAN = float("inf"), float("nan")


def applied(op: str, operands: Scalar, *args: Any) -> Any:
    """The result of an operation on values of the type `operands`, a condition of where aside.

    f32 rounds each result to the nearest; integers wrap; // and % by 0 are 0; a shift by more than
    a type has bits is that of all bits.
    """
    if op in CASTS:
        return converted(args[0], Scalar(op))
    if op in ROUNDINGS:
        return nearest(op, args[0])
    if op == "where":
        return args[1] if args[0] else args[2]
    if op in _RELATIONS:
        return _RELATIONS[op](*args)
    if operands is F32:
        return rounded(_FLOATS[op](*args))
    if operands is BOOL:
        return not args[0] if op == "~" else _INTEGERS[op](*args)
    if op in ("<<", ">>"):
        return operands.wrapped(_shifted(op, operands, *args))
    return operands.wrapped(_INTEGERS[op](*args))


def _shifted(op: str, kind: Scalar, value: int, amount: int) -> int:
    if not 0 <= amount < kind.bits:
        return -1 if op == ">>" and value < 0 else 0
    return value << amount if op == "<<" else value >> amount


def _or(otherwise: float, function: Callable[..., float]) -> Callable[..., float]:
    """`function`, and a value where Python raises for an infinite one."""

    def total(*args: float) -> float:
        try:
            return function(*args)
        except (OverflowError, ValueError, ZeroDivisionError):
            return otherwise

    return total


def _divided(a: float, b: float) -> float:
    if b == 0:
        return NAN if a == 0 or a != a else math.copysign(INF, a) * math.copysign(1, b)
    return a / b


def _logarithm(function: Callable[[float], float]) -> Callable[[float], float]:
    return lambda x: -INF if x == 0 else _or(NAN, function)(x)


def least(a: float, b: float) -> float:
    """NaN where one is, as for torch."""
    return a if a != a or (a < b and b == b) else b


def greatest(a: float, b: float) -> float:
    return a if a != a or (a > b and b == b) else b


_RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_BOTH: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "neg": operator.neg,
    "abs": abs,
    "min": least,
    "max": greatest,
    "clamp": lambda x, low, high: least(greatest(x, low), high),
}
_INTEGERS: dict[str, Callable[..., int]] = _BOTH | {
    "//": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "~": operator.invert,
}
_FLOATS: dict[str, Callable[..., float]] = _BOTH | {
    "/": _divided,
    "exp": _or(INF, math.exp),
    "exp2": _or(INF, lambda x: 2.0**x),
    "log": _logarithm(math.log),
    "log2": _logarithm(math.log2),
    "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + _or(INF, math.exp)(-x)),
    "sqrt": _or(NAN, math.sqrt),
    "rsqrt": lambda x: _divided(1.0, _or(NAN, math.sqrt)(x)),
    "sin": _or(NAN, math.sin),
    "cos": _or(NAN, math.cos),
    # NOTE: math.floor returns an int, which has no -0.0.
    "floor": lambda x: x if x in (INF, -INF, 0) or x != x else float(math.floor(x)),
    "erf": math.erf,
}
