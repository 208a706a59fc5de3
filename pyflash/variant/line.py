"""What a score function adds to the score that is a line along the keys: ALiBi's slope times the
distance. Kernels that know it add it to exponents, and make no scores of their own."""

from __future__ import annotations

from dataclasses import dataclass

from pyflash.variant.affine import Affine
from pyflash.variant.expr import SCORE, Node, constant, operation
from pyflash.variant.scalars import F32
from pyflash.variant.stages import (
    Stage,
    Stages,
    is_computed,
    is_float_of_distance,
    is_float_of_key,
)
from pyflash.variant.walk import postorder


@dataclass(frozen=True)
class Line:
    """slope: what it gains from a key to the next, the same for a batch and a head. value: a field
    of a distance or a column. is_subtracted: from the score."""

    slope: Node
    value: Node
    is_subtracted: bool


def line_of(stages: Stages) -> Line | None:
    """None where the score function is anything else than the score and a line."""
    root = stages.score
    if root.op not in ("+", "-") or SCORE not in root.args or root.args[0] == root.args[1]:
        return None
    value = root.args[1] if root.args[0] == SCORE else root.args[0]
    if SCORE in postorder(value) or (root.op == "-" and root.args[0] != SCORE):
        return None
    if stages.of[value] not in (Stage.COLUMN, Stage.DISTANCE) or not is_computed(value):
        return None
    slope = _slope_of(value, stages)
    return None if slope is None else Line(slope, value, root.op == "-")


def _slope_of(value: Node, stages: Stages) -> Node | None:
    if is_float_of_key(value) or is_float_of_distance(value):
        total = Affine.of(value.args[0])
        steps = [factor for part, factor in total.terms if stages.of[part] is not Stage.UNIFORM]
        return constant(float(steps[0]), F32) if len(steps) == 1 else None
    if value.op != "*":
        return None
    for position, factor in (value.args, value.args[::-1]):
        if stages.of[factor] is Stage.UNIFORM and factor.kind is F32:
            step = _slope_of(position, stages)
            return None if step is None else operation("*", step, factor)
    return None
