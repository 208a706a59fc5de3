"""What a mask shows of a tile: none, some or all of its pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyflash.variant.expr import Node
from pyflash.variant.interval import ALWAYS, NEVER, Bounds, bounds, whole

_LARGEST_BOX = 4096  # elements of a tensor that are looked at


@dataclass(frozen=True, slots=True)
class Problem:
    """The extents of the pairs of a mask. q0 and k0 are the first positions of a part."""

    q_len: int
    k_len: int
    batch: int = 1
    heads: int = 1
    q0: int = 0
    k0: int = 0


@dataclass(frozen=True, slots=True)
class Tile:
    """The pairs of queries and keys, first and last, of a batch and a head."""

    q: tuple[int, int]
    k: tuple[int, int]
    b: int = 0
    h: int = 0


def tile(mask: Node, at: Tile, problem: Problem, values: Mapping[str, Any]) -> str:
    """none, some or all. At worst some.

    values: parameters by name, numbers or nested lists; any may be missing.
    """
    indices = {
        "b": Bounds(at.b, at.b),
        "h": Bounds(at.h, at.h),
        "q": Bounds(*at.q),
        "k": Bounds(*at.k),
    }
    for name in ("q_len", "k_len", "q0", "k0"):
        value = getattr(problem, name)
        indices[name] = Bounds(value, value)

    def leaf(node: Node, args: tuple[Bounds, ...]) -> Bounds:
        if node.op == "index":
            return indices[node.data]
        table = values.get(node.data.name)
        return whole(node.kind) if table is None else element_bounds(node, table, args)

    found = bounds(mask, leaf)
    return {NEVER: "none", ALWAYS: "all"}.get(found, "some")


def element_bounds(node: Node, table: Any, indices: Sequence[Bounds]) -> Bounds:
    """The bounds of the elements that a load may read."""
    boxes: list[Any] = [table]
    for position in indices:
        extent = len(boxes[0])
        first, last = _inside(position, extent)
        if len(boxes) * (last - first + 1) > _LARGEST_BOX:
            return whole(node.kind)
        boxes = [part for box in boxes for part in box[first : last + 1]]
    numbers = [box for box in boxes if box == box]
    nan = len(numbers) < len(boxes)
    return Bounds(min(numbers), max(numbers), nan) if numbers else whole(node.kind)


def _inside(position: Bounds, extent: int) -> tuple[int, int]:
    """The positions that are read: from the end where negative, clamped."""
    if position.low < 0 <= position.high:
        return 0, extent - 1
    low, high = position.low, position.high
    if high < 0:
        low, high = low + extent, high + extent
    return min(max(low, 0), extent - 1), min(max(high, 0), extent - 1)


def tiles(
    mask: Node, problem: Problem, block: tuple[int, int], values: Mapping[str, Any], b: int, h: int
) -> list[list[str]]:
    """By blocks of queries, then of keys, what the mask shows."""

    def blocks(length: int, size: int) -> list[tuple[int, int]]:
        return [(first, min(first + size, length) - 1) for first in range(0, length, size)]

    return [
        [tile(mask, Tile(q, k, b, h), problem, values) for k in blocks(problem.k_len, block[1])]
        for q in blocks(problem.q_len, block[0])
    ]
