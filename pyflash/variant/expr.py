"""Expressions: immutable trees of operations on a score, indices and parameters.

node = operation("-", index("q"), index("k"))
"""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyflash.variant.scalars import (
    ARITY,
    BOOL,
    CASTS,
    F32,
    I32,
    I64,
    ROUNDINGS,
    Scalar,
    converted,
    rounded,
    rounded_to,
    signature,
)
from pyflash.variant.text import expression_text
from pyflash.variant.walk import postorder, preorder

# What an expression may read without declaring it, and what it is.
MEANINGS = {
    "s": "the scaled score, f32",
    "b": "the batch",
    "h": "the query head",
    "q": "the query",
    "k": "the key",
    "q_len": "queries of the sequence",
    "k_len": "keys of the sequence",
    "q0": "the first query's position, for parts of a sequence",
    "k0": "the first key's position",
}
INDICES = tuple(MEANINGS)[1:]
MAX_NODES = 512  # of a score function or mask, each use of a shared part counted
MAX_DEPTH = 128
MAX_RANK = 4
MAX_LOADS = 3  # one within the index of another
_MAX_WORK = 16 * MAX_NODES  # of what is derived from a score function or mask


@dataclass(frozen=True, slots=True)
class Param:
    """What a variant captures: a number, or a tensor of `rank` axes. Rank 0 is a tensor with one
    number."""

    name: str
    kind: Scalar
    rank: int | None = None  # None: a number

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.rank is not None and not 0 <= self.rank <= MAX_RANK:
            raise ValueError(
                f"{self.name} has {self.rank} axes: expected at most {MAX_RANK}, "
                "flatten some of them"
            )

    @property
    def type_text(self) -> str:
        return str(self.kind) if self.rank is None else f"{self.kind}[{self.rank}]"

    def __str__(self) -> str:
        return f"{self.name}: {self.type_text}"


RESERVED = {*MEANINGS, *ARITY, *(str(kind) for kind in Scalar), "inf", "where", "nan"}


def check_name(name: str) -> None:
    """Raises ValueError for what cannot name a parameter."""
    if not name.isascii() or not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"{name!r} is no name of a parameter: expected letters, digits and _")
    if name in RESERVED:
        raise ValueError(
            f"{name!r} is reserved and no name of a parameter: expected another, such as {name}_"
        )


_set = object.__setattr__


def _comparable(data: Any) -> Any:
    """-0.0 is not 0.0."""
    return repr(data) if type(data) is float else data


class Node:
    """A value of an expression. Equal trees are equal and have the same hash.

    op: "constant", "index", "load" or an operation of scalars.ARITY. data: the number of a
    constant, the name of an index, the Param of a load.
    """

    __slots__ = ("_hash", "args", "data", "depth", "kind", "loads", "op", "size")
    op: str
    kind: Scalar
    args: tuple[Node, ...]
    data: Any
    size: int
    depth: int
    loads: int
    _hash: int

    def __init__(
        self, op: str, kind: Scalar, args: tuple[Node, ...] = (), data: Any = None
    ) -> None:
        size, depth, loads = 1, 0, 0
        for arg in args:
            size += arg.size
            depth = arg.depth if arg.depth > depth else depth
            loads = arg.loads if arg.loads > loads else loads
        if size > _MAX_WORK:
            raise ValueError(f"an expression has more than {_MAX_WORK} nodes: expected fewer")
        _set(self, "op", op)
        _set(self, "kind", kind)
        _set(self, "args", args)
        _set(self, "data", data)
        _set(self, "size", size)
        _set(self, "depth", depth + 1)
        _set(self, "loads", loads + (op == "load"))
        _set(self, "_hash", hash((op, kind.value, _comparable(data), args)))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} of a node cannot be set: nodes are immutable")

    __delattr__ = __setattr__  # type: ignore[assignment]

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Node):
            return NotImplemented
        return (
            self._hash == other._hash
            and (self.op, self.kind) == (other.op, other.kind)
            and _comparable(self.data) == _comparable(other.data)
            and self.args == other.args
        )

    def __reduce__(self) -> Any:
        """In a list: a deep tree would recurse."""
        nodes = list(postorder(self))
        place = {node: i for i, node in enumerate(nodes)}
        rows = [(n.op, n.kind, tuple(place[a] for a in n.args), n.data) for n in nodes]
        return _from_rows, (rows,)

    def __str__(self) -> str:
        return expression_text(self)

    def __repr__(self) -> str:
        return f"<{self.kind}: {self}>"


def _from_rows(rows: Sequence[tuple[str, Scalar, tuple[int, ...], Any]]) -> Node:
    nodes: list[Node] = []
    for op, kind, args, data in rows:
        nodes.append(Node(op, kind, tuple(nodes[i] for i in args), data))
    return nodes[-1]


def constant(value: bool | int | float, kind: Scalar | None = None) -> Node:
    """A number. Without a type: bool, f32, or the shorter integer that holds it."""
    if kind is None:
        if isinstance(value, bool):
            kind = BOOL
        elif isinstance(value, float):
            kind = F32
        else:
            kind = I32 if I32.holds(value) else I64
            if not I64.holds(value):
                raise ValueError(f"{value} has more than 64 bits: expected an i64")
    if isinstance(value, float) and value != value:
        raise ValueError("NaN is no constant of a variant: expected a number")
    return Node("constant", kind, data=converted(value, kind))


def index(name: str) -> Node:
    """The score `s`, or one of INDICES."""
    return Node("index", F32 if name == "s" else I32, data=name)


SCORE = index("s")
TRUE = constant(True)
FALSE = constant(False)


def load(param: Param, *indices: Node) -> Node:
    """A number, or an element of a tensor. An index counts from the end where it is below 0, as in
    torch."""
    if len(indices) != (param.rank or 0):
        raise ValueError(
            f"{param.name} has {len(indices)} indices: expected {param.rank or 0}, one for each "
            f"axis of {param}"
        )
    for node in indices:
        if not node.kind.is_integer:
            cure = "convert it with i32(x)"
            raise ValueError(
                f"an index of {param.name} is {node.kind}: expected an integer, {cure}"
            )
    node = Node("load", param.kind.computed, indices, param)
    if node.loads > MAX_LOADS:
        raise ValueError(
            f"{param.name} is the {node.loads}th load within an index of another: expected at most "
            f"{MAX_LOADS}, join two of the tables"
        )
    return node


def operation(op: str, *args: Node) -> Node:
    """An operation on nodes. Raises ValueError for types that it does not take."""
    _, kind = signature(op, tuple(arg.kind for arg in args))
    _check_operands(op, args)
    if args[0].op == "constant" and (op == "neg" or op in CASTS or op in ROUNDINGS):
        return _folded(op, kind, args[0].data)
    return Node(op, kind, args)


def cast(node: Node, kind: Scalar) -> Node:
    return node if node.kind is kind else operation(kind.value, node)


def _folded(op: str, kind: Scalar, value: Any) -> Node:
    """So that a constant has one form."""
    if op == "neg":
        return constant(-value, kind)
    if op in CASTS:
        return constant(value, kind)
    return constant(rounded_to(op, rounded(float(value))))


def _check_operands(op: str, args: tuple[Node, ...]) -> None:
    if op in ("//", "%") and args[1].op == "constant" and args[1].data == 0:
        raise ValueError(f"{op} by 0: expected another divisor")
    if op in ("<<", ">>") and args[1].op == "constant":
        bits = signature(op, tuple(arg.kind for arg in args))[1].bits
        if not 0 <= args[1].data < bits:
            raise ValueError(f"{op} by {args[1].data}: expected 0 to {bits - 1}")


def rebuilt(node: Node, args: tuple[Node, ...]) -> Node:
    """The same operation on other operands."""
    if node.op in ("constant", "index"):
        return node
    if node.op == "load":
        return load(node.data, *args)
    return operation(node.op, *args)


def params_of(*roots: Node) -> tuple[Param, ...]:
    """In the order of their first use."""
    found = (node.data for node in preorder(*roots) if node.op == "load")
    return tuple(dict.fromkeys(found))
