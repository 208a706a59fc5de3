"""Expressions as text, which pyflash.variant.parser reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyflash.variant.scalars import COMPARISONS, F32, I32, I64, rounded
from pyflash.variant.walk import fold

if TYPE_CHECKING:
    from pyflash.variant.expr import Node

_INFIX = {"|": 2, "^": 3, "&": 4, "<<": 5, ">>": 5, "+": 6, "-": 6} | dict.fromkeys(
    ("*", "/", "//", "%"), 7
)
_INFIX |= dict.fromkeys(COMPARISONS, 1)
_PREFIX = {"neg": "-", "~": "~"}
_UNARY, _ATOM = 8, 9


def expression_text(root: Node) -> str:
    return fold(root, _text)[0]


def _text(node: Node, args: tuple[tuple[str, int], ...]) -> tuple[str, int]:
    """The text of a node, and how tightly its outermost operator binds."""
    op, texts = node.op, [text for text, _ in args]
    if op == "constant":
        return _constant_text(node)
    if op == "index":
        return node.data, _ATOM
    if op == "load":
        return node.data.name + (f"[{', '.join(texts)}]" if texts else ""), _ATOM
    if op in _PREFIX:
        return _PREFIX[op] + _enclosed(args[0], _UNARY), _UNARY
    if op in _INFIX:
        level = _INFIX[op]
        left = _enclosed(args[0], level + (op in COMPARISONS))
        return f"{left} {op} {_enclosed(args[1], level + 1)}", level
    return f"{op}({', '.join(texts)})", _ATOM


def _enclosed(operand: tuple[str, int], level: int) -> str:
    text, binds = operand
    return text if binds >= level else f"({text})"


def _constant_text(node: Node) -> tuple[str, int]:
    value = node.data
    if node.kind is F32:
        text = float_text(value)
    elif node.kind is I64 and I32.holds(value):
        return f"i64({value})", _ATOM
    else:
        text = str(value)
    return text, _UNARY if text.startswith("-") else _ATOM


def float_text(value: float) -> str:
    """The shortest decimal whose nearest f32 it is."""
    texts = (f"{value:.{digits}g}" for digits in range(1, 10))
    return repr(next(float(text) for text in texts if rounded(float(text)) == value))
