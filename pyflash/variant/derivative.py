"""The derivative of a score function, by the score and by what it loads, with torch's rules at
corners: 0 for abs at 0, 1 for clamp at a bound, half to each where min or max has a tie.

Masks and selections are selected after the derivative, never multiplied: 0 * inf is NaN.
"""

from __future__ import annotations

import math

from pyflash.variant.expr import SCORE, Node, constant, operation
from pyflash.variant.scalars import F32
from pyflash.variant.walk import fold, postorder

ZERO, ONE = constant(0.0), constant(1.0)


def derivative(root: Node, by: Node = SCORE) -> Node:
    """d root / d by, where `by` is the score or a load. Raises ValueError where it has too many
    nodes."""

    def rule(node: Node, args: tuple[Node, ...]) -> Node:
        if node == by:
            return ONE
        if node.kind is not F32 or all(arg == ZERO for arg in args):
            return ZERO
        return _rule(node, args)

    return fold(root, rule)


def derivatives(root: Node) -> dict[Node, Node]:
    """By the score and each load of floats, those that are not 0 everywhere."""
    wanted = [SCORE, *(n for n in postorder(root) if n.op == "load" and n.kind is F32)]
    found = {by: derivative(root, by) for by in wanted}
    return {by: node for by, node in found.items() if node != ZERO}


def _rule(node: Node, args: tuple[Node, ...]) -> Node:
    """By the derivatives of the operands, of which one is not 0."""
    op, operands = node.op, node.args
    if op == "+":
        return _sum(*args)
    if op == "-":
        return _difference(*args)
    if op == "*":
        a, b = operands
        return _sum(_product(args[0], b), _product(a, args[1]))
    if op == "/":
        by_b = _product(node, _quotient(args[1], operands[1]))
        return _difference(_quotient(args[0], operands[1]), by_b)
    if op == "where":
        return _select(operands[0], *args[1:])
    if op in ("min", "max"):
        return _extreme(op, operands, args)
    if op == "clamp":
        return _clamped(operands, args)
    if op in ("f16", "bf16", "neg"):
        return _difference(ZERO, *args) if op == "neg" else args[0]
    if op == "abs":
        below = operation("<", operands[0], ZERO)
        up = _select(operation(">", operands[0], ZERO), args[0], ZERO)
        return _select(below, _difference(ZERO, args[0]), up)
    if op == "floor":
        return ZERO
    return _product(args[0], _slope(op, operands[0], node))


def _slope(op: str, x: Node, y: Node) -> Node:
    """The slope of a function of one number, y = op(x)."""
    if op in ("exp", "sigmoid", "tanh"):
        factors = {"exp": y, "sigmoid": _product(y, _difference(ONE, y))}
        return factors.get(op) or _difference(ONE, _product(y, y))
    if op == "exp2":
        return _product(y, constant(math.log(2)))
    if op == "log":
        return _quotient(ONE, x)
    if op == "log2":
        return _quotient(ONE, _product(x, constant(math.log(2))))
    if op == "sqrt":
        return _quotient(constant(0.5), y)
    if op == "rsqrt":
        return _product(constant(-0.5), _product(y, _product(y, y)))
    if op == "sin":
        return operation("cos", x)
    if op == "cos":
        return _difference(ZERO, operation("sin", x))
    square = _difference(ZERO, _product(x, x))  # erf
    return _product(constant(2 / math.sqrt(math.pi)), operation("exp", square))


def _extreme(op: str, operands: tuple[Node, ...], args: tuple[Node, ...]) -> Node:
    a, b = operands
    half = _product(_sum(*args), constant(0.5))
    first = operation(">" if op == "max" else "<", a, b)
    return _select(operation("==", a, b), half, _select(first, *args))


def _clamped(operands: tuple[Node, ...], args: tuple[Node, ...]) -> Node:
    x, low, high = operands
    inside = operation("&", operation(">=", x, low), operation("<=", x, high))
    below = operation("&", operation("<", x, low), operation("<", low, high))
    above = operation("|", operation(">", x, high), operation("<", high, low))
    found = ZERO
    for place, part in ((above, args[2]), (below, args[1]), (inside, args[0])):
        if part != ZERO:
            found = _select(place, part, found)
    return found


def _sum(a: Node, b: Node) -> Node:
    if a == ZERO or b == ZERO:
        return b if a == ZERO else a
    return operation("+", a, b)


def _difference(a: Node, b: Node) -> Node:
    if b == ZERO:
        return a
    return operation("neg", b) if a == ZERO else operation("-", a, b)


def _product(a: Node, b: Node) -> Node:
    """A derivative times a value: 0 where the derivative is 0 everywhere."""
    if ZERO in (a, b):
        return ZERO
    if ONE in (a, b):
        return b if a == ONE else a
    return operation("*", a, b)


def _quotient(a: Node, b: Node) -> Node:
    return ZERO if a == ZERO else operation("/", a, b)


def _select(condition: Node, yes: Node, no: Node) -> Node:
    return yes if yes == no else operation("where", condition, yes, no)
