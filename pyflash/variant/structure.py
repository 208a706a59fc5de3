"""How a kernel can walk the keys of a mask, read from its normal form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyflash.variant.affine import Affine
from pyflash.variant.expr import TRUE, Node
from pyflash.variant.interval import anywhere, bounds
from pyflash.variant.walk import fold

EVERYTHING, RANGES, BITS = "everything", "ranges", "bits"


def structure(mask: Node) -> str:
    """What a normal mask shows. everything: it hides nothing. ranges: a row attends one interval of
    keys, whose ends do not fall from row to row. bits: anything else, as far as it is simple to
    see."""
    if mask == TRUE:
        return EVERYTHING
    return RANGES if all(map(_is_range, conjuncts(mask))) else BITS


def conjuncts(mask: Node) -> list[Node]:
    """What has to be true at once."""
    found, rest = [], [mask]
    while rest:
        part = rest.pop()
        if part.op == "&":
            rest.extend(reversed(part.args))
        else:
            found.append(part)
    return found


@dataclass(frozen=True, slots=True)
class Direction:
    """How a value moves with the query and the key: 1 never falls, -1 never rises, 0 stays, None is
    not known."""

    q: int | None = 0
    k: int | None = 0

    def times(self, sign: int | None) -> Direction:
        def product(way: int | None) -> int | None:
            return 0 if way == 0 else None if way is None or sign is None else way * sign

        return Direction(product(self.q), product(self.k))

    @property
    def is_uniform(self) -> bool:
        return (self.q, self.k) == (0, 0)


_UNKNOWN = Direction(None, None)


def _together(directions: Iterable[Direction]) -> Direction:
    """The direction of what rises with each of several."""

    def joined(ways: set[int | None]) -> int | None:
        moving = ways - {0}
        if None in moving or len(moving) > 1:
            return None
        return moving.pop() if moving else 0

    found = list(directions)
    return Direction(joined({d.q for d in found}), joined({d.k for d in found}))


def direction(root: Node) -> Direction:
    return fold(root, _direction)


def _direction(node: Node, args: tuple[Direction, ...]) -> Direction:
    if node.op == "index":
        return Direction(int(node.data == "q"), int(node.data == "k"))
    if all(arg.is_uniform for arg in args):
        return Direction()
    a, b = args[0], args[-1]
    if not node.kind.is_integer:
        return _UNKNOWN
    if node.op in ("+", "-", "neg") or (node.op == "*" and node.args[1].op == "constant"):
        if not Affine.of(node).fits():
            return _UNKNOWN
        if node.op == "*":
            return a.times(1 if node.args[1].data > 0 else -1)
        if node.op == "neg":
            return a.times(-1)
        return _together((a, b if node.op == "+" else b.times(-1)))
    if node.op in ("min", "max", "clamp"):
        return _together(args)
    if node.op == "//" and b.is_uniform:
        return a if bounds(node.args[1], anywhere).low > 0 else _UNKNOWN
    return a if node.op == "i64" else _UNKNOWN


def _is_range(part: Node) -> bool:
    """Whether a condition alone shows one interval of keys to a row."""
    if direction(part).is_uniform:
        return True
    if part.op == "~" and part.args[0].op == "<=":  # a < b, where a + 1 may wrap
        part = part.args[0]
        left, right = part.args[::-1]
    elif part.op in ("<=", "=="):
        left, right = part.args
    else:
        return False
    if not left.kind.is_integer:
        return False
    sides = Affine.of(left), Affine.of(right)
    if not all(side.fits() for side in sides):
        return False
    difference = sides[0].exactly_minus(sides[1])
    ways = [direction(term).times(1 if factor > 0 else -1) for term, factor in difference.terms]
    if any(way.q != 0 and way.k != 0 for way in ways):
        return False
    way = _together(ways)
    if way.q is None or way.k is None:
        return False
    return way.k != 0 and way.q in (0, -way.k)
