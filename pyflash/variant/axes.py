"""How often each part of an expression is computed, and what it costs a score."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from pyflash.variant.expr import Node
from pyflash.variant.scalars import COMPARISONS, F32
from pyflash.variant.walk import postorder


class Rate(IntEnum):
    """uniform: once for a batch and a head; row: for each query; column: for each key; pair: for
    each of both. The score is of a pair."""

    UNIFORM = 0
    ROW = 1
    COLUMN = 2
    PAIR = 3


def rates(*roots: Node) -> dict[Node, Rate]:
    """The rate of every node."""
    found: dict[Node, Rate] = {}
    own = {"q": Rate.ROW, "k": Rate.COLUMN, "s": Rate.PAIR}
    for node in postorder(*roots):
        rate = own.get(node.data, Rate.UNIFORM) if node.op == "index" else Rate.UNIFORM
        for arg in node.args:
            rate = Rate(rate | found[arg])
        found[node] = rate
    return found


@dataclass(frozen=True, slots=True)
class Cost:
    """Estimated instructions of a lane, and those of the special function unit."""

    instructions: int = 0
    special: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.instructions + other.instructions, self.special + other.special)


# A special function with the multiplications around it, as CUDA's fast intrinsics have them.
_FUNCTIONS = {
    "exp2": Cost(0, 1),
    "exp": Cost(1, 1),
    "log2": Cost(0, 1),
    "log": Cost(1, 1),
    "tanh": Cost(0, 1),
    "sigmoid": Cost(2, 2),
    "sqrt": Cost(0, 1),
    "rsqrt": Cost(0, 1),
    "sin": Cost(1, 1),
    "cos": Cost(1, 1),
    "/": Cost(1, 1),
    "erf": Cost(14, 1),
    "clamp": Cost(2),
    "f16": Cost(2),
    "bf16": Cost(2),
}
_FREE = ("constant", "index", "neg", "abs", "~")


def cost_of(node: Node) -> Cost:
    """The cost of one operation, its operands aside."""
    if node.op == "load":
        return Cost(1 + 2 * len(node.args)) if node.args else Cost()
    if node.op in _FREE:
        return Cost()
    if node.op in ("//", "%"):
        return _division(node)
    if node.op in _FUNCTIONS:
        return _FUNCTIONS[node.op]
    if node.op == "i64" or node.op in COMPARISONS:
        return Cost(1)
    return Cost(2 if node.kind.bits == 64 and node.kind is not F32 else 1)


def _division(node: Node) -> Cost:
    divisor = node.args[1]
    if divisor.op == "constant":
        power = divisor.data > 0 and divisor.data & (divisor.data - 1) == 0
        return Cost(1) if power else Cost(4 if node.op == "//" else 6)
    if divisor.op == "load" and not divisor.args:  # a number: the host prepares a multiplication
        return Cost(6 if node.op == "//" else 8)
    return Cost(24)


def costs(*roots: Node) -> dict[Rate, Cost]:
    """The cost of all parts of each rate, shared ones once."""
    found = dict.fromkeys(Rate, Cost())
    for node, rate in rates(*roots).items():
        found[rate] += cost_of(node)
    return found


def kept(*roots: Node) -> dict[Rate, int]:
    """By rate, how many values of it pairs read: they stay in registers."""
    found = rates(*roots)
    used = {arg for node, rate in found.items() if rate is Rate.PAIR for arg in node.args}
    used |= set(roots)
    values = {node for node in used if node.op != "constant"}
    return {r: sum(found[n] is r for n in values) for r in Rate if r is not Rate.PAIR}
