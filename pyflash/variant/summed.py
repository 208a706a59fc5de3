"""What a variant captures and kernels of gradients sum the gradients of."""

from __future__ import annotations

from dataclasses import dataclass

from pyflash.variant.derivative import ZERO, derivative
from pyflash.variant.expr import Node, Param
from pyflash.variant.scalars import F32
from pyflash.variant.value import Variant
from pyflash.variant.walk import postorder


@dataclass(frozen=True)
class Summed:
    """A variant for kernels that compute gradients of these captured tensors, too, by their places
    among the tensors of the normal form, ascending. Raises ValueError for a place that has no
    gradient."""

    variant: Variant
    places: tuple[int, ...]

    def __post_init__(self) -> None:
        known = differentiable(self.variant)
        if not self.places or list(self.places) != sorted(set(self.places) & set(known)):
            raise ValueError(
                f"gradients of the tensors {self.places} of {self.variant.name}: expected some of "
                f"{known}, ascending"
            )

    @property
    def name(self) -> str:
        return self.variant.name

    @property
    def key(self) -> str:
        """The variant's, and the places: of rows of a kernel library."""
        return self.variant.key + "".join(f"_{place}" for place in self.places)

    def __str__(self) -> str:
        own = [param for param in self.variant.captured if param.rank is not None]
        names = ", ".join(own[place].name for place in self.places)
        return f"{self.variant}, and gradients of {names}"


def differentiable(variant: Variant) -> tuple[int, ...]:
    """The places of those by which the score function has a derivative that is not 0 everywhere."""
    own = [param for param in variant.normal.params if param.rank is not None]
    found = {load.data for load in loads_of(variant.normal.score, own)}
    return tuple(place for place, param in enumerate(own) if param in found)


def loads_of(score: Node, params: list[Param]) -> dict[Node, Node]:
    """The loads of these tensors, and the derivative of the score function by each where it is not
    0 everywhere."""
    loads = [
        node
        for node in postorder(score)
        if node.op == "load" and node.kind is F32 and node.data in params
    ]
    found = {load: derivative(score, load) for load in loads}
    return {load: by_load for load, by_load in found.items() if by_load != ZERO}
