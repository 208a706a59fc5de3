"""Walks through expressions, each shared part met once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pyflash.variant.expr import Node

T = TypeVar("T")


def _operands(node: Node) -> tuple[Node, ...]:
    return node.args


def postorder(
    *roots: Node, operands: Callable[[Node], tuple[Node, ...]] = _operands
) -> Iterator[Node]:
    """Each distinct node once, operands before what uses them. operands: those that are walked."""
    seen: set[Node] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if node in seen:
            continue
        if ready or not operands(node):
            seen.add(node)
            yield node
        else:
            stack.append((node, True))
            stack += [(arg, False) for arg in reversed(operands(node))]


def preorder(*roots: Node) -> Iterator[Node]:
    """Each distinct node once, as a reader of functions of operands meets it."""
    seen: set[Node] = set()
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack.extend(reversed(node.args))


def fold(root: Node, rule: Callable[[Node, tuple[T, ...]], T]) -> T:
    """The value of `root` by the values of operands."""
    values: dict[Node, T] = {}
    for node in postorder(root):
        values[node] = rule(node, tuple(values[arg] for arg in node.args))
    return values[root]
