"""The types of numbers, and what each operation takes and gives."""

from __future__ import annotations

import ctypes
from enum import Enum
from typing import Any


class Scalar(Enum):
    """Integers wrap, as torch's do. f16 and bf16 are types of parameters alone: a load of one is an
    f32, and so is all arithmetic."""

    BOOL = "bool"
    I32 = "i32"
    I64 = "i64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"

    def __str__(self) -> str:
        return self.value

    @property
    def computed(self) -> Scalar:
        """What a load of it is."""
        return Scalar.F32 if self in (Scalar.F16, Scalar.BF16) else self

    @property
    def is_integer(self) -> bool:
        return self in (Scalar.I32, Scalar.I64)

    @property
    def bits(self) -> int:
        return _BITS[self.value]

    @property
    def least(self) -> int:
        return _ENDS[self.value][0]

    @property
    def greatest(self) -> int:
        return _ENDS[self.value][1]

    def holds(self, value: int) -> bool:
        return self.least <= value <= self.greatest

    def wrapped(self, value: int) -> int:
        """The integer of this type that equals `value` modulo 2^bits."""
        return (value - self.least) % (1 << self.bits) + self.least


_BITS = {"bool": 1, "i32": 32, "i64": 64, "f32": 32, "f16": 16, "bf16": 16}
_ENDS = {"bool": (0, 1), "i32": (-(1 << 31), (1 << 31) - 1), "i64": (-(1 << 63), (1 << 63) - 1)}
BOOL, I32, I64, F32 = Scalar.BOOL, Scalar.I32, Scalar.I64, Scalar.F32
_ORDER = (BOOL, I32, I64, F32)

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
CASTS = ("bool", "i32", "i64", "f32")
ROUNDINGS = ("f16", "bf16")  # an f32 rounded to those of a shorter type
TRANSCENDENTAL = ("exp", "exp2", "log", "log2", "tanh", "sigmoid", "sin", "cos", "erf")
FLOAT_FUNCTIONS = (*TRANSCENDENTAL, "sqrt", "rsqrt", "floor")
# By operation, the number of its operands.
ARITY = {
    **dict.fromkeys(("neg", "~", "abs", *CASTS, *ROUNDINGS, *FLOAT_FUNCTIONS), 1),
    **dict.fromkeys(("+", "-", "*", "/", "//", "%", "<<", ">>", "&", "|", "^"), 2),
    **dict.fromkeys((*COMPARISONS, "min", "max"), 2),
    **dict.fromkeys(("where", "clamp"), 3),
}
_NUMBERS = ("+", "-", "*", "min", "max", "neg", "abs", "clamp")


def promoted(*types: Scalar) -> Scalar:
    """As torch promotes tensors without axes: bool < i32 < i64 < f32."""
    return max(types, key=_ORDER.index)


def signature(op: str, types: tuple[Scalar, ...]) -> tuple[tuple[Scalar, ...], Scalar]:
    """The types to which operands of `types` are converted, and the type of the result. Raises
    ValueError for operands that the operation does not take."""
    n = len(types)
    if n != ARITY[op]:
        raise ValueError(f"{op} has {n} operands: expected {ARITY[op]}")
    if op in CASTS:
        return types, Scalar(op)
    if op in FLOAT_FUNCTIONS or op in ROUNDINGS or op == "/":
        return (F32,) * n, F32
    if op == "where":
        if types[0] is not BOOL:
            raise ValueError(f"the condition of where is {types[0]}: expected bool, such as x != 0")
        common = promoted(*types[1:])
        return (BOOL, common, common), common
    common = promoted(*types)
    if op in COMPARISONS:
        return (common, common), BOOL
    if common is BOOL and op not in ("~", "&", "|", "^"):
        raise ValueError(f"{op} of bool: expected a number, write & | ^ ~, or i32(x)")
    if op in _NUMBERS:
        return (common,) * n, common
    _check_integers(op, types, common)
    return (common,) * n, common


def _check_integers(op: str, types: tuple[Scalar, ...], common: Scalar) -> None:
    if common is F32:
        cures = {"//": "write floor(a / b)", "%": "write a - b * floor(a / b)"}
        cure = cures.get(op, "convert with i32(x)")
        raise ValueError(f"{op} of f32: expected integers, {cure}")
    if op in ("&", "|", "^") and BOOL in types and common is not BOOL:
        raise ValueError(
            f"{op} of {types[0]} and {types[1]}: expected two bools or two integers; comparisons "
            "bind looser than &, | and ^, so put them in parentheses"
        )


def rounded(value: float) -> float:
    """The nearest f32."""
    return ctypes.c_float(value).value


def rounded_to(kind: str, value: float) -> float:
    """The nearest f16 or bf16 of an f32, ties to even."""
    if value != value or value in (float("inf"), float("-inf")) or value == 0:
        return value
    if kind == "bf16":
        bits = int.from_bytes(bytes(ctypes.c_float(value)), "little")
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        return ctypes.c_float.from_buffer_copy(bits.to_bytes(4, "little")).value
    import struct

    try:
        return struct.unpack("e", struct.pack("e", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def converted(value: Any, kind: Scalar) -> Any:
    """A number as another type. Of an f32 to an integer: cut towards 0, saturated, 0 for NaN."""
    if kind is BOOL:
        return bool(value)
    if kind is F32:
        return rounded(float(value))
    if isinstance(value, float):
        if value != value:
            return 0
        return int(min(max(value, kind.least), kind.greatest))
    return kind.wrapped(int(value))
