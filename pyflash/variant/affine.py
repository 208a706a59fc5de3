"""Sums of integers as affine forms: a constant, and a coefficient for each other part."""

from __future__ import annotations

from dataclasses import dataclass

from pyflash.variant.expr import Node, constant, operation
from pyflash.variant.interval import anywhere, bounds
from pyflash.variant.ordering import order
from pyflash.variant.scalars import Scalar


@dataclass(frozen=True)
class Affine:
    """The sum of coefficient * part and a constant, modulo 2^bits of `kind`."""

    kind: Scalar
    terms: tuple[tuple[Node, int], ...]
    constant: int

    @classmethod
    def of(cls, node: Node) -> Affine:
        """Takes a sum as `node` makes it apart, or holds any other integer as one term."""
        terms: dict[Node, int] = {}
        total = 0
        rest = [(node, 1)]
        while rest:
            part, factor = rest.pop()
            if part.op == "constant":
                total += factor * part.data
            elif part.op in ("+", "-"):
                sign = 1 if part.op == "+" else -1
                rest += [(part.args[1], sign * factor), (part.args[0], factor)]
            elif part.op == "neg":
                rest.append((part.args[0], -factor))
            elif part.op == "*" and part.args[1].op == "constant":
                rest.append((part.args[0], factor * part.args[1].data))
            else:
                terms[part] = terms.get(part, 0) + factor
        return _made(node.kind, terms, total)

    def plus(self, other: Affine) -> Affine:
        terms = dict(self.terms)
        for part, factor in other.terms:
            terms[part] = terms.get(part, 0) + factor
        return _made(self.kind, terms, self.constant + other.constant)

    def times(self, factor: int) -> Affine:
        terms = {part: factor * f for part, f in self.terms}
        return _made(self.kind, terms, self.constant * factor)

    def minus(self, other: Affine) -> Affine:
        return self.plus(other.times(-1))

    def exactly_minus(self, other: Affine, more: int = 0) -> Affine:
        """The difference of whole numbers and `more`, which may not fit."""
        terms = dict(self.terms)
        for part, factor in other.terms:
            terms[part] = terms.get(part, 0) - factor
        kept = sorted((term for term in terms.items() if term[1]), key=_place)
        return Affine(self.kind, tuple(kept), self.constant - other.constant + more)

    def plus_constant(self, value: int) -> Affine:
        return _made(self.kind, dict(self.terms), self.constant + value)

    def fits(self) -> bool:
        """Whether it never wraps, with any parameters and at any positions."""
        low = high = self.constant
        for part, factor in self.terms:
            found = bounds(part, anywhere)
            ends = (factor * found.low, factor * found.high)
            low, high = low + min(ends), high + max(ends)
        return self.kind.holds(low) and self.kind.holds(high)

    def sides(self, op: str) -> tuple[Affine, Affine]:
        """The two sides of `self` <= 0 or == 0: positive coefficients, and negative ones with the
        constant, unless that is alone on its side."""
        if op == "==" and self.terms and self.terms[0][1] < 0:
            terms = tuple((part, -factor) for part, factor in self.terms)
            return Affine(self.kind, terms, -self.constant).sides(op)
        up = tuple(term for term in self.terms if term[1] > 0)
        down = tuple((part, -factor) for part, factor in self.terms if factor < 0)
        if not up:
            return Affine(self.kind, (), self.constant), Affine(self.kind, down, 0)
        return Affine(self.kind, up, 0), Affine(self.kind, down, -self.constant)

    def node(self) -> Node:
        """A sum in the order of its parts, positive ones first, the constant last unless no other
        part is positive."""
        terms = sorted(self.terms, key=lambda term: term[1] < 0)
        rest = constant(abs(self.constant), self.kind)
        begins = self.constant > 0 and all(factor < 0 for _, factor in terms)
        found = rest if begins else None
        for part, factor in terms:
            size = constant(abs(factor), self.kind)
            term = part if abs(factor) == 1 else operation("*", part, size)
            if found is None:
                found = term if factor > 0 else operation("neg", term)
            else:
                found = operation("+" if factor > 0 else "-", found, term)
        if found is None:
            return constant(self.constant, self.kind)
        if self.constant == 0 or begins:
            return found
        return operation("+" if self.constant > 0 else "-", found, rest)


def _place(term: tuple[Node, int]) -> str:
    return order(term[0])


def _made(kind: Scalar, terms: dict[Node, int], total: int) -> Affine:
    wrapped = ((part, kind.wrapped(factor)) for part, factor in terms.items())
    kept = sorted((term for term in wrapped if term[1]), key=_place)
    return Affine(kind, tuple(kept), kind.wrapped(total))
