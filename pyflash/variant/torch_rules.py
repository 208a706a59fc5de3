"""Functions of torch by name as operations on nodes, and those that no variant has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pyflash.variant.expr import Node, cast, constant, operation
from pyflash.variant.scalars import BOOL, F32, I32, I64, Scalar

DTYPES = {BOOL: torch.bool, I32: torch.int32, I64: torch.int64, F32: torch.float32}
# What captured tensors may be.
TENSOR_DTYPES = DTYPES | {Scalar.F16: torch.float16, Scalar.BF16: torch.bfloat16}
Rule = Callable[..., Node]


def _op(name: str) -> Rule:
    return lambda *args: operation(name, *args)


def _swapped(name: str) -> Rule:
    return lambda a, b: operation(name, b, a)


def _scaled(name: str) -> Rule:
    """add and sub, whose second operand may have a factor."""

    def rule(a: Node, b: Node, alpha: Node | None = None) -> Node:
        return operation(name, a, b if alpha is None else operation("*", b, alpha))

    return rule


def _floor(x: Node) -> Node:
    return operation("floor", x) if x.kind is F32 else x


def _ceil(x: Node) -> Node:
    return operation("neg", _floor(operation("neg", x)))


def _divide(a: Node, b: Node, rounding_mode: str | None = None) -> Node:
    if rounding_mode is None:
        return operation("/", a, b)
    if rounding_mode == "floor":
        return operation("//", a, b)
    raise TypeError("a division that cuts towards 0: expected rounding_mode='floor', or None")


def _as_bool(x: Node) -> Node:
    return x if x.kind is BOOL else operation("bool", x)


def _logical(name: str) -> Rule:
    return lambda *args: operation(name, *map(_as_bool, args))


def _clamp(x: Node, min: Node | None = None, max: Node | None = None) -> Node:
    kinds = [node.kind for node in (x, min, max) if node is not None]
    if F32 in kinds:
        ends = (constant(-float("inf")), constant(float("inf")))
    else:
        kind: Scalar = I64 if I64 in kinds else I32
        ends = (constant(kind.least, kind), constant(kind.greatest, kind))
    low, high = (end if node is None else node for node, end in zip((min, max), ends, strict=True))
    return operation("clamp", x, low, high)


def _extreme(name: str) -> Rule:
    def rule(a: Node, b: Node | None = None, **kwargs: Any) -> Node:
        if b is None or kwargs:
            raise TypeError(_ONE_SCORE)
        return operation(name, a, b)

    return rule


def _where(condition: Node, a: Node | None = None, b: Node | None = None) -> Node:
    if a is None or b is None:
        raise TypeError("where without values: expected torch.where(condition, a, b)")
    return operation("where", condition, a, b)


def _power(x: Node, n: Node) -> Node:
    power = n.data if n.op == "constant" else None
    if x.op == "constant" and x.data == 2:
        return operation("exp2", n)
    if power == 1:
        return x
    if power in (2, 3):
        square = operation("*", x, x)
        return square if power == 2 else operation("*", square, x)
    if power == -1:
        return operation("/", constant(1.0), x)
    if power in (0.5, -0.5):
        return operation("sqrt" if power > 0 else "rsqrt", x)
    raise TypeError("this power has no form here: expected 2, 3, 0.5, or exp2(n * log2(x))")


def _sign(x: Node) -> Node:
    zero, one, less = (constant(n) for n in (0, 1, -1))
    below = operation("where", operation("<", x, zero), less, zero)
    found = operation("where", operation(">", x, zero), one, below)
    return operation("f32", found) if x.kind is F32 else found


def _relu(x: Node) -> Node:
    return operation("where", operation("<=", x, constant(0)), constant(0), x)


def _full(value: int) -> Rule:
    return lambda x: constant(value, x.kind)


_BINARY = {
    "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "and": "&", "or": "|",
    "xor": "^", "lshift": "<<", "rshift": ">>", "add": "+", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip
_SAME = ("abs", "neg", "exp", "exp2", "log", "log2", "tanh", "sigmoid", "sqrt", "rsqrt", "sin",
         "cos", "erf")  # fmt: skip
RULES: dict[str, Rule] = {
    **{name: _op(name) for name in _SAME},
    **{f"__{name}__": _op(op) for name, op in _BINARY.items()},
    **{f"__r{name}__": _swapped(op) for name, op in _BINARY.items()},
    **{name: _op(_BINARY[name]) for name in ("lt", "le", "gt", "ge", "eq", "ne", "mul")},
    **{f"__{name}__": _op(name) for name in ("abs", "neg")},
    **{name: _op(op) for op, names in {
        "abs": ("absolute",), "neg": ("negative",), "*": ("multiply",), "~": ("bitwise_not",),
        "//": ("floor_divide",), "%": ("remainder",), "<": ("less",), "<=": ("less_equal",),
        ">": ("greater",), ">=": ("greater_equal",), "!=": ("not_equal",), "&": ("bitwise_and",),
        "|": ("bitwise_or",), "^": ("bitwise_xor",), "<<": ("bitwise_left_shift",),
        ">>": ("bitwise_right_shift",), "min": ("minimum",), "max": ("maximum",),
        "sigmoid": ("expit", "special_expit"), "erf": ("special_erf",),
    }.items() for name in names},
    "__invert__": _op("~"),
    "add": _scaled("+"),
    "sub": _scaled("-"),
    "subtract": _scaled("-"),
    "rsub": _swapped("-"),
    "div": _divide,
    "divide": _divide,
    "true_divide": _divide,
    "floor": _floor,
    "ceil": _ceil,
    "logical_not": _logical("~"),
    "logical_and": _logical("&"),
    "logical_or": _logical("|"),
    "logical_xor": _logical("^"),
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": lambda x, min: _clamp(x, min),
    "clamp_max": lambda x, max: _clamp(x, None, max),
    "max": _extreme("max"),
    "min": _extreme("min"),
    "where": _where,
    "where of": lambda a, condition, b: _where(condition, a, b),  # as a method
    "pow": _power,
    "__pow__": _power,
    "__rpow__": lambda n, x: _power(x, n),
    "square": lambda x: operation("*", x, x),
    "reciprocal": lambda x: operation("/", constant(1.0), x),
    "sign": _sign,
    "relu": _relu,
    "zeros_like": _full(0),
    "ones_like": _full(1),
    "full_like": lambda x, fill_value: cast(fill_value, x.kind),
    "clone": lambda x: x,
}  # fmt: skip

_ONE_SCORE = (
    "a reduction over scores, of which a function sees one at a time: expected none; an attention "
    "sink is the option sinks"
)
_REDUCTIONS = (
    "sum", "mean", "amax", "amin", "softmax", "log_softmax", "logsumexp", "argmax", "argmin",
    "cumsum", "prod", "std", "var", "norm", "cat", "stack", "matmul", "__matmul__",
)  # fmt: skip
_RANDOM = (
    "rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "bernoulli", "dropout",
    "normal", "multinomial", "randperm", "poisson",
)  # fmt: skip
_VALUES = ("item", "tolist", "numpy", "__int__", "__float__", "__bool__", "__index__", "__iter__")


def refusal_of(name: str, of_score: bool = True) -> str:
    """Why a traced function may not call a function of torch, and what to do; "" where it may. Of a
    score or an index, or of captured tensors alone."""
    if name in _REDUCTIONS and of_score:
        return _ONE_SCORE
    if name in _RANDOM:
        return f"{name} is random: expected the same result in every call; load from a tensor"
    if name in _VALUES:
        return (
            f"{name} reads the value of a tensor while its function is traced: expected torch's "
            "functions of the tensor itself, and torch.where instead of if"
        )
    is_write = name in ("__setitem__", "__delitem__", "copy_", "index_put_")
    if is_write or (name.endswith("_") and not name.endswith("__")):
        return f"{name} is a write: expected a new value, as torch.where makes"
    return ""
