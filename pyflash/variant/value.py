"""The value: a variant of attention."""

from __future__ import annotations

import hashlib
import keyword
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyflash.variant.expr import (
    MAX_DEPTH,
    MAX_NODES,
    SCORE,
    TRUE,
    Node,
    Param,
    operation,
    params_of,
)
from pyflash.variant.normal import normal_form
from pyflash.variant.portable import text_of
from pyflash.variant.scalars import BOOL, F32
from pyflash.variant.walk import postorder


@dataclass(frozen=True, eq=False)
class Variant:
    """Attention in which the score `s` of a pair becomes `score`, if `mask` shows the pair.

    Variants are equal where their normal forms are: names and how an expression is written do not
    count. Raises ValueError for what is no variant.
    """

    name: str
    params: tuple[Param, ...] = ()
    score: Node = SCORE
    mask: Node = field(default=TRUE)

    def __post_init__(self) -> None:
        if not self.name.isascii() or not self.name.isidentifier() or keyword.iskeyword(self.name):
            raise ValueError(
                f"{self.name!r} is no name of a variant: expected letters, digits and _"
            )
        _check_type("score", self.score, F32, "f32, convert it with f32(x)")
        _check_type("mask", self.mask, BOOL, "bool, such as k <= q")
        if SCORE in postorder(self.mask):
            raise ValueError(
                "the mask reads s: expected positions and parameters alone, write the score as "
                "where(condition, s, -inf)"
            )
        self._check_params()

    def _check_params(self) -> None:
        declared = {param.name: param for param in self.params}
        if len(declared) < len(self.params):
            names = [param.name for param in self.params]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"{twice} is declared twice: expected one parameter of a name")
        used = params_of(self.score, self.mask)
        for param in used:
            if declared.get(param.name) != param:
                raise ValueError(f"{param} is not declared: expected it among the parameters")
        for param in self.params:
            if param not in used:
                raise ValueError(f"{param.name} is declared and not used: expected a use of it")

    @cached_property
    def normal(self) -> Variant:
        """The normal form: what kernels are made of."""
        _, score, mask = self._normal
        return Variant("v", params_of(score, mask), score, mask)

    @property
    def captured(self) -> tuple[Param, ...]:
        """The parameters that the normal form has, in its order."""
        return self._normal[0]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Those of all parameters."""
        return tuple(param.name for param in self.params)

    @cached_property
    def captured_names(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Those of the captured parameters: tensors, floats, integers."""
        tensors, reals, integers = [], [], []
        for param in self.captured:
            is_real = param.kind.computed is F32
            place = tensors if param.rank is not None else reals if is_real else integers
            place.append(param.name)
        return tuple(tensors), tuple(reals), tuple(integers)

    @cached_property
    def _normal(self) -> tuple[tuple[Param, ...], Node, Node]:
        return normal_form(self.score, self.mask)

    @cached_property
    def divisors(self) -> tuple[tuple[str, Node], ...]:
        """Numbers by which integers are divided, by name, and where."""
        return tuple(
            (node.args[1].data.name, node)
            for node in postorder(self.score, self.mask)
            if node.op in ("//", "%")
            and node.args[1].op == "load"
            and node.args[1].data.rank is None
        )

    @cached_property
    def key(self) -> str:
        """16 hexadecimal digits that name the normal form."""
        return hashlib.sha256(str(self.normal).encode()).hexdigest()[:16]

    @cached_property
    def portable(self) -> str:
        """What the op takes in place of the value: pyflash/variant/portable.py."""
        return text_of(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Variant):
            return NotImplemented
        ours, theirs = self.normal, other.normal
        return (ours.params, ours.score, ours.mask) == (theirs.params, theirs.score, theirs.mask)

    def __hash__(self) -> int:
        return hash(self.key)

    def same_as(self, other: Variant) -> bool:
        """Whether they are written in the same way, names included."""
        return (self.name, self.params, self.score, self.mask) == (
            other.name,
            other.params,
            other.score,
            other.mask,
        )

    def __str__(self) -> str:
        params = f"({', '.join(map(str, self.params))})" if self.params else ""
        mask = "" if self.mask == TRUE else f" where {self.mask}"
        return f"{self.name}{params}: {self.score}{mask}"

    def __repr__(self) -> str:
        return f"<Variant {self}>"

    def __reduce__(self) -> Any:
        return Variant, (self.name, self.params, self.score, self.mask)


def as_score(node: Node) -> Node:
    """An integer as a score."""
    return operation("f32", node) if node.kind.is_integer else node


def _check_type(what: str, node: Node, kind: Any, expected: str) -> None:
    if node.kind is not kind:
        raise ValueError(f"the {what} is {node.kind}: expected {expected}")
    for name, found, most in (("nodes", node.size, MAX_NODES), ("levels", node.depth, MAX_DEPTH)):
        if found > most:
            raise ValueError(
                f"the {what} has {found} {name}: expected at most {most}, load what it computes "
                "from a tensor"
            )
