"""Variants by operators of Python:

p = Parameters(slope="f32[1]")
alibi = define("alibi", p, V.score + p.slope[V.h] * (V.k - V.q), V.k <= V.q)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyflash.config.words import shown, type_name
from pyflash.variant.expr import INDICES, SCORE, TRUE, Node, Param, constant, index, load, operation
from pyflash.variant.scalars import ARITY, Scalar
from pyflash.variant.value import Variant, as_score

if TYPE_CHECKING:
    from typing_extensions import Self


class Term:
    """An expression with Python's operators. `&`, `|` and `~` are the logical ones."""

    __slots__ = ("node",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, node: Node) -> None:
        self.node = node

    def operand(self, value: Any) -> Node:
        """The other operand of an operator."""
        return node_of(value)

    def __bool__(self) -> bool:
        raise TypeError(
            f"the truth of {shown(str(self.node))} is not known here: expected where(c, a, b) "
            "instead of if, & | ~ instead of and, or, not, and no chained comparison"
        )

    def __iter__(self) -> Any:
        raise TypeError("an expression is no sequence: expected an index, such as slope[h]")

    def __repr__(self) -> str:
        return repr(self.node)

    def __abs__(self) -> Self:
        return type(self)(operation("abs", self.node))

    def __neg__(self) -> Self:
        return type(self)(operation("neg", self.node))

    def __invert__(self) -> Self:
        return type(self)(operation("~", self.node))


class Tensor:
    """A captured tensor: `tensor[i, j]` is one of its numbers."""

    __slots__ = ("param",)

    def __init__(self, param: Param) -> None:
        self.param = param

    def __getitem__(self, indices: Any) -> Term:
        indices = indices if isinstance(indices, tuple) else (indices,)
        return Term(load(self.param, *map(node_of, indices)))


def node_of(value: Any) -> Node:
    """The node of a Term, a Node or a number. Raises TypeError for anything else."""
    node = getattr(value, "node", value)  # of a Term, or of a number that tracing captured
    if isinstance(node, Node):
        return node
    if isinstance(value, Tensor):
        raise TypeError(f"{value.param.name} is a tensor: expected one of its numbers, index it")
    if isinstance(value, bool | int | float):
        return constant(value)
    raise TypeError(f"{shown(value)} is {type_name(value)}: expected an expression or a number")


def _binary(op: str, swapped: bool = False) -> Callable[[Term, Any], Term]:
    def method(self: Term, other: Any) -> Term:
        given = self.operand(other)
        args = (given, self.node) if swapped else (self.node, given)
        return type(self)(operation(op, *args))

    return method


_METHODS = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod",
    "&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift",
}  # fmt: skip
_COMPARISONS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
for _op, _name in _METHODS.items():
    setattr(Term, f"__{_name}__", _binary(_op))
    setattr(Term, f"__r{_name}__", _binary(_op, swapped=True))
for _op, _name in _COMPARISONS.items():
    setattr(Term, f"__{_name}__", _binary(_op))


class _Vocabulary:
    """What every variant may use: `V.score`, indices as `V.q`, functions as `V.exp(x)`."""

    score = Term(SCORE)

    def __getattr__(self, name: str) -> Any:
        if name in INDICES:
            return Term(index(name))
        if name in ARITY and name.isidentifier():
            return lambda *args: Term(operation(name, *map(node_of, args)))
        raise AttributeError(
            f"a variant has no {name!r}: expected score, {', '.join(INDICES)}, or a function: "
            f"{', '.join(sorted(op for op in ARITY if op.isidentifier()))}"
        )


V: Any = _Vocabulary()


class Parameters:
    """Named parameters by their types: `Parameters(window="i32", slope="f32[1]")`."""

    def __init__(self, **types: str) -> None:
        self.params = tuple(param_of(name, text) for name, text in types.items())
        for param in self.params:
            term = Term(load(param)) if not param.rank else Tensor(param)
            setattr(self, param.name, term)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{name!r} is no parameter: expected {', '.join(p.name for p in self.params) or 'none'}"
        )


def param_of(name: str, text: str) -> Param:
    """From a type as text, such as "f32[2]". Raises ValueError."""
    kind, bracket, rank = text.replace(" ", "").partition("[")
    kinds = {str(known): known for known in Scalar}
    good_rank = rank[:-1].isdigit() and rank.endswith("]") if bracket else True
    if kind not in kinds or not good_rank:
        raise ValueError(
            f"{name} has the type {shown(text)}: expected {', '.join(kinds)}, or a tensor with its "
            "number of axes, such as f32[2]"
        )
    return Param(name, kinds[kind], int(rank[:-1]) if bracket else None)


def define(
    name: str, params: Parameters | None = None, score: Any = SCORE, mask: Any = TRUE
) -> Variant:
    """A variant of terms or numbers. An integer score is converted."""
    captured = params.params if params else ()
    return Variant(name, captured, as_score(node_of(score)), node_of(mask))
