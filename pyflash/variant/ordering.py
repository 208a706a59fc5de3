"""The order of operands that commute."""

from __future__ import annotations

from functools import lru_cache

from pyflash.variant.expr import Node


@lru_cache(maxsize=1 << 14)
def order(node: Node) -> str:
    """What they are sorted by: all but the names of parameters."""
    data = node.data.type_text if node.op == "load" else node.data
    return f"{node.op} {node.kind} {data} ({', '.join(map(order, node.args))})"
