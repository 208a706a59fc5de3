"""The normal form: expressions that compute the same have one form, as far as it is simple to see.

Conversions are written out, sums of integers are affine, integers are compared by <= and ==, what
commutes is sorted, constants are folded, and parameters have names by their place. Floats are never
re-associated.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyflash.variant.affine import Affine
from pyflash.variant.arithmetic import applied
from pyflash.variant.expr import (
    FALSE,
    SCORE,
    TRUE,
    Node,
    Param,
    cast,
    constant,
    load,
    operation,
    params_of,
    rebuilt,
)
from pyflash.variant.ordering import order
from pyflash.variant.scalars import (
    BOOL,
    COMPARISONS,
    F32,
    FLOAT_FUNCTIONS,
    Scalar,
    signature,
)
from pyflash.variant.walk import fold

_MINUS_INFINITY = constant(-float("inf"))
_UNFOLDED = tuple(op for op in FLOAT_FUNCTIONS if op != "floor")  # implementations differ


def normal_form(score: Node, mask: Node) -> tuple[tuple[Param, ...], Node, Node]:
    """The normal form of a score function and a mask, and the parameters that its p0, p1, ... are.
    A score of -inf is a mask."""
    score, mask = simplified(score), simplified(mask)
    while score.op == "where" and _MINUS_INFINITY in score.args[1:]:
        condition, yes, no = score.args
        shown, score = (_not(condition), no) if yes == _MINUS_INFINITY else (condition, yes)
        mask = _both("&", mask, shown)
    if score == _MINUS_INFINITY:
        mask = FALSE
    if mask == FALSE:
        score = SCORE
    params = params_of(score, mask)
    names = {p: Param(f"p{i}", p.kind, p.rank) for i, p in enumerate(params)}
    return params, _renamed(score, names), _renamed(mask, names)


def simplified(root: Node) -> Node:
    """The normal form of one expression, with the names of its parameters."""
    return fold(root, _rule)


def _renamed(root: Node, names: Mapping[Param, Param]) -> Node:
    def rule(node: Node, args: tuple[Node, ...]) -> Node:
        return load(names[node.data], *args) if node.op == "load" else rebuilt(node, args)

    return fold(root, rule)


def _rule(node: Node, args: tuple[Node, ...]) -> Node:
    """The normal form of an operation on normal forms."""
    op = node.op
    if op in ("constant", "index"):
        return node
    if op == "load":
        return load(node.data, *args)
    types, _ = signature(op, tuple(arg.kind for arg in args))
    args = tuple(cast(arg, kind) for arg, kind in zip(args, types, strict=True))
    kind = types[-1]
    if op in (">", ">="):
        op, args = op.replace(">", "<"), args[::-1]
    if op == "!=":
        return _not(_relation("==", kind, *args))
    if op in COMPARISONS:
        return _relation(op, kind, *args)
    if op == "where":
        return _where(*args)
    if kind is BOOL and op in ("&", "|", "^"):
        return _both(op, *args)
    if kind is BOOL and op == "~":
        return _not(*args)
    if (folded := _folded(op, kind, args)) is not None:
        return folded
    if kind.is_integer:
        return _integer(op, *args)
    return _other(op, *args)


def _folded(op: str, kind: Scalar, args: tuple[Node, ...]) -> Node | None:
    if op in _UNFOLDED or not all(arg.op == "constant" for arg in args):
        return None
    value = applied(op, kind, *(arg.data for arg in args))
    result = signature(op, tuple(arg.kind for arg in args))[1]
    return None if value != value else constant(value, result)


def _where(condition: Node, yes: Node, no: Node) -> Node:
    if condition.op == "constant":
        return yes if condition.data else no
    if yes == no:
        return yes
    if condition.op == "~":
        return _where(condition.args[0], no, yes)
    return operation("where", condition, yes, no)


# Booleans


def _not(node: Node) -> Node:
    """Pushed inwards."""
    if node.op == "constant":
        return constant(not node.data)
    if node.op == "~":
        return node.args[0]
    if node.op in ("&", "|"):
        other = "|" if node.op == "&" else "&"
        return _both(other, *map(_not, node.args))
    if node.op == "<=" and node.args[0].kind.is_integer:
        return _relation("<", node.args[0].kind, *node.args[::-1])
    return operation("~", node)


def _both(op: str, *args: Node) -> Node:
    """& and | of sorted distinct operands; ^ of two."""
    if op == "^":
        return _exclusive(*args)
    neutral, absorbing = constant(op == "&"), constant(op != "&")
    parts = dict.fromkeys(part for arg in args for part in _parts(op, arg))
    if absorbing in parts:
        return absorbing
    parts.pop(neutral, None)
    return _chain(op, sorted(parts, key=order)) if parts else neutral


def _exclusive(a: Node, b: Node) -> Node:
    if a.op == "constant" or b.op == "constant":
        other, known = (b, a) if a.op == "constant" else (a, b)
        return _not(other) if known.data else other
    return FALSE if a == b else _chain("^", sorted((a, b), key=order))


def _parts(op: str, node: Node) -> list[Node]:
    found, rest = [], [node]
    while rest:
        part = rest.pop()
        if part.op == op:
            rest.extend(reversed(part.args))
        else:
            found.append(part)
    return found


def _chain(op: str, parts: list[Node]) -> Node:
    found = parts[0]
    for part in parts[1:]:
        found = operation(op, found, part)
    return found


def _relation(op: str, kind: Scalar, a: Node, b: Node) -> Node:
    """a < b, a <= b or a == b."""
    if kind is BOOL:
        if op == "==":
            return _not(_exclusive(a, b))
        return _both("&" if op == "<" else "|", _not(a), b)
    if a.op == b.op == "constant":
        return constant(applied(op, kind, a.data, b.data))
    if kind is F32:
        return operation(op, *(sorted((a, b), key=order) if op == "==" else (a, b)))
    return _of_integers(op, a, b)


def _of_integers(op: str, a: Node, b: Node) -> Node:
    """By one side minus the other, where nothing wraps; else side by side."""
    left, right = Affine.of(a), Affine.of(b)
    difference = left.exactly_minus(right, more=int(op == "<"))
    sides = difference.sides(op)
    fit = all(side.fits() for side in (left, right, *sides))
    if fit and not difference.terms:
        return constant(difference.constant == 0 if op == "==" else difference.constant <= 0)
    if fit:
        return operation("==" if op == "==" else "<=", *(side.node() for side in sides))
    a, b = left.node(), right.node()
    if op == "<":
        return FALSE if a == b else operation("~", operation("<=", b, a))
    if op == "==":
        return TRUE if a == b else operation("==", *sorted((a, b), key=order))
    return TRUE if a == b else operation("<=", a, b)


# Numbers


def _integer(op: str, *args: Node) -> Node:
    a, b = args[0], args[-1]
    known = b.data if b.op == "constant" else None
    if op in ("+", "-", "neg", "~", "*") or (op == "<<" and known is not None):
        return _affine(op, *args)
    if op == ">>" and known is not None:
        if known == b.kind.bits - 1:
            return operation(op, a, b)  # 2^31 is no i32
        op, b, known = "//", constant(1 << known, b.kind), 1 << known
    if op in ("//", "%") and known == 1:
        return a if op == "//" else constant(0, a.kind)
    if op in ("min", "max", "&", "|", "^"):
        if op != "^" and a == b:
            return a
        return operation(op, *sorted((a, b), key=order))
    return _other(op, *args[:-1], b)


def _affine(op: str, *args: Node) -> Node:
    a, b = Affine.of(args[0]), Affine.of(args[-1])
    if op == "+":
        return a.plus(b).node()
    if op == "-":
        return a.minus(b).node()
    if op == "neg":
        return a.times(-1).node()
    if op == "~":
        return a.times(-1).plus_constant(-1).node()
    if op == "<<":
        return a.times(1 << b.constant).node()
    if not a.terms or not b.terms:
        factor, other = (a.constant, b) if not a.terms else (b.constant, a)
        return other.times(factor).node()
    return operation("*", *sorted((a.node(), b.node()), key=order))


_NEUTRAL = {"*": constant(1.0), "/": constant(1.0), "-": constant(0.0)}


def _other(op: str, *args: Node) -> Node:
    a, b = args[0], args[-1]
    if op == a.kind.value:
        return a
    if op == "bool":
        return _not(_relation("==", a.kind, a, constant(0, a.kind)))
    if op == "neg" and a.op == "neg":
        return a.args[0]
    if op == "i32" and a.op == "i64" and a.args[0].kind is Scalar.I32:
        return a.args[0]
    if op in _NEUTRAL and b == _NEUTRAL[op]:
        return a
    if op == "*" and a == _NEUTRAL["*"]:
        return b
    return operation(op, *(sorted(args, key=order) if op in ("+", "*") else args))
