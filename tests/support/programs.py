"""Random variants: a grammar, values for what they read, and the same as functions of torch.

    variant = program(Random(seed))
    evaluate(variant, pairs(Random(seed)))

Every index of a tensor is inside. What is only near between implementations, such as exp, decides
no comparison and no integer.
"""

from __future__ import annotations

from random import Random

import hypothesis.strategies as st
import numpy as np

from pyflash.variant.expr import Node, Param, constant, index, load, operation, params_of
from pyflash.variant.scalars import COMPARISONS, F32, I32, I64, TRANSCENDENTAL, Scalar
from pyflash.variant.value import Variant, as_score
from pyflash.variant.walk import postorder

_SHAPES = {
    "n": None, "wide": None, "x": None, "flag": None, "ids": (7,), "far": (5,), "bias": (6, 5),
    "half": (4,), "brain": (3,), "keep": (5, 4), "alone": (), "deep": (2, 3, 2, 4),
}  # fmt: skip
_KINDS = {
    "n": "i32", "wide": "i64", "x": "f32", "flag": "bool", "ids": "i32", "far": "i64",
    "bias": "f32", "half": "f16", "brain": "bf16", "keep": "bool", "alone": "f32", "deep": "f32",
}  # fmt: skip
PARAMS = {
    name: Param(name, Scalar(_KINDS[name]), None if shape is None else len(shape))
    for name, shape in _SHAPES.items()
}
_INTEGERS = ("ids", "far")
_FLOATS = ("bias", "half", "brain", "alone", "deep")
FLEX_INDICES = ("b", "h", "q", "k")
_LENGTHS = ("q_len", "k_len", "q0", "k0")


def captured() -> dict[str, np.ndarray]:
    """The values of PARAMS; bf16 as float32."""
    rng = np.random.default_rng(5)
    values: dict[str, np.ndarray] = {
        "n": np.int32(11), "wide": np.int64(-(1 << 40)), "x": np.float32(0.375),
        "flag": np.bool_(True),
    }  # fmt: skip
    for name, shape in _SHAPES.items():
        if shape is not None and _KINDS[name] in ("i32", "i64"):
            values[name] = rng.integers(-9, 30, shape).astype(_KINDS[name].replace("i", "int"))
        elif shape is not None and _KINDS[name] == "bool":
            values[name] = rng.integers(0, 2, shape).astype(bool)
        elif shape is not None:
            eighths = rng.integers(-20, 20, shape) / 8  # of which every float type has all
            values[name] = eighths.astype(np.float16 if _KINDS[name] == "f16" else np.float32)
    values["far"][0] = (1 << 31) + 5
    return values


def pairs(random: Random, count: int = 64) -> dict[str, np.ndarray]:
    """Scores and indices of pairs, and the values of PARAMS."""
    rng = np.random.default_rng(random.randrange(1 << 32))
    values = {name: rng.integers(0, 40, count).astype(np.int32) for name in FLEX_INDICES}
    values |= {name: rng.integers(0, 60, count).astype(np.int32) for name in _LENGTHS}
    values["s"] = (rng.integers(-64, 64, count) / 16).astype(np.float32)
    values["s"][:3] = (np.inf, -np.inf, 0)
    return values | captured()


class Grammar:
    """Draws expressions. lengths: whether they read more than functions of FlexAttention can."""

    def __init__(self, random: Random, lengths: bool = True, mask: bool = False) -> None:
        self.random = random
        self.indices = FLEX_INDICES + (_LENGTHS if lengths else ())
        self.mask = mask

    def integer(self, levels: int) -> Node:
        draw = self.random
        if levels <= 0 or draw.random() < 0.15:
            return self._integer_leaf()
        kind = draw.choice(
            ["+-*", "+-*", "//%", "min max", "shift", "bits", "one", "where", "load"]
        )
        if kind == "where":
            return operation("where", self.condition(levels - 1), *self._integers(levels, 2))
        if kind == "load":
            return self._load(draw.choice(_INTEGERS), levels)
        if kind == "//%":
            divisor = draw.choice([constant(d) for d in (1, 2, 3, 8, -5)] + [load(PARAMS["n"])])
            return operation(draw.choice(["//", "%"]), self.integer(levels - 1), divisor)
        if kind == "shift":
            amount = constant(draw.randrange(5))
            return operation(draw.choice(["<<", ">>"]), self.integer(levels - 1), amount)
        if kind == "one":
            one = draw.choice(["neg", "abs", "~", "i64", "i32", "f32"])
            if one != "f32":
                return operation(one, self.integer(levels - 1))
            return self._rounded_float(levels)
        if kind == "min max" and draw.random() < 0.3:
            return operation("clamp", *self._integers(levels, 3))
        ops = {"+-*": ("+", "-", "*"), "min max": ("min", "max"), "bits": ("&", "|", "^")}[kind]
        return operation(draw.choice(ops), *self._integers(levels, 2))

    def _integers(self, levels: int, count: int) -> list[Node]:
        return [self.integer(levels - 1) for _ in range(count)]

    def _integer_leaf(self) -> Node:
        draw = self.random
        leaves = [index(draw.choice(self.indices)), index(draw.choice("qk"))]
        leaves += [constant(draw.randrange(-9, 40)), load(PARAMS["n"])]
        if draw.random() < 0.1:
            leaves = [load(PARAMS["wide"])]
        return draw.choice(leaves)

    def _rounded_float(self, levels: int) -> Node:
        """An integer of a float that no integer type is too short for."""
        number = self.number(levels - 1, exact=True)
        number = operation("where", operation("==", number, number), number, constant(0.0))
        number = operation("clamp", number, constant(-99.0), constant(99.0))
        return operation("i32", number)

    def _load(self, name: str, levels: int) -> Node:
        """An index below 0 counts from the end."""
        indices = []
        for extent in _SHAPES[name] or ():
            inside = operation("%", self.integer(levels - 2), constant(extent))
            if self.random.random() < 0.2:
                inside = operation("-", inside, constant(extent))
            indices.append(inside)
        try:
            return load(PARAMS[name], *indices)
        except ValueError:  # loads within the indices of loads
            return load(PARAMS[name], *(constant(0) for _ in indices))

    def condition(self, levels: int) -> Node:
        draw = self.random
        if levels <= 0 or draw.random() < 0.5:
            operand = self.integer if draw.random() < 0.7 else self._exact
            return operation(draw.choice(COMPARISONS), operand(levels - 1), operand(levels - 1))
        kind = draw.choice(["&", "|", "^", "~", "where", "load", "flag", "bool"])
        if kind == "load":
            return self._load("keep", levels)
        if kind == "flag":
            return load(PARAMS["flag"])
        if kind == "bool":
            return operation("bool", self.integer(levels - 1))
        count = {"~": 1, "where": 3}.get(kind, 2)
        return operation(kind, *(self.condition(levels - 1) for _ in range(count)))

    def _exact(self, levels: int) -> Node:
        return self.number(levels, exact=True)

    def number(self, levels: int, exact: bool = False) -> Node:
        draw = self.random
        if levels <= 0 or draw.random() < 0.15:
            return self._number_leaf()
        kind = draw.choice(["+-*", "+-*", "min max", "one", "where", "load", "i32", "any"])
        if kind == "any":
            return (
                self._inexact(levels) if not exact else operation("floor", self._exact(levels - 1))
            )
        if kind == "i32":
            return operation("f32", self.integer(levels - 1))
        if kind == "load":
            return self._load(draw.choice(_FLOATS), levels)
        if kind == "where":
            return operation("where", self.condition(levels - 1), *self._numbers(levels, 2, exact))
        if kind == "one":
            return operation(draw.choice(["neg", "abs"]), self.number(levels - 1, exact))
        if kind == "min max" and draw.random() < 0.3:
            return operation("clamp", *self._numbers(levels, 3, exact))
        ops = ("min", "max") if kind == "min max" else ("+", "-", "*")
        return operation(draw.choice(ops), *self._numbers(levels, 2, exact))

    def _numbers(self, levels: int, count: int, exact: bool) -> list[Node]:
        return [self.number(levels - 1, exact) for _ in range(count)]

    def _number_leaf(self) -> Node:
        draw = self.random
        leaves = [constant(draw.choice([0.5, -1.0, 0.1, 2.0, 3.25])), load(PARAMS["x"])]
        leaves += [load(PARAMS["alone"]), operation("f32", index(draw.choice("qk")))]
        return draw.choice(leaves if self.mask else [*leaves, index("s"), index("s")])

    def _inexact(self, levels: int) -> Node:
        """A function of a number that no function has made inexact."""
        draw = self.random
        operand = self._exact(levels - 1)
        op = draw.choice([*TRANSCENDENTAL, "sqrt", "rsqrt", "/", "f16", "bf16"])
        if op == "/":
            return operation("/", operand, self._exact(levels - 1))
        if op in ("exp", "exp2", "sin", "cos"):  # whose errors grow with their operands
            operand = operation("clamp", operand, constant(-20.0), constant(20.0))
        return operation(op, operand)


def program(random: Random, lengths: bool = True, levels: int = 4) -> Variant:
    """A variant with both parts. lengths: as Grammar has it."""
    score = as_score(Grammar(random, lengths).number(levels))
    mask = Grammar(random, lengths, mask=True).condition(levels)
    return Variant("random", params_of(score, mask), score, mask)


programs = st.builds(program, st.randoms(use_true_random=False))


def integer_program(random: Random, levels: int = 4) -> Variant:
    """A mask of integers alone, with the plain score."""
    mask = Grammar(random, mask=True).condition(levels)
    return Variant("random", params_of(mask), mask=mask)


def is_exact(variant: Variant) -> bool:
    """Whether every implementation has the same bits."""
    inexact = (*TRANSCENDENTAL, "sqrt", "rsqrt")  # torch's vectors round no square root
    return not any(node.op in inexact for node in postorder(variant.score))


__all__ = ["F32", "FLEX_INDICES", "I32", "I64", "PARAMS", "Grammar", "captured", "pairs"]
