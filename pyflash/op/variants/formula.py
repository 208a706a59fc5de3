"""A variant's score function and mask in torch, on whole tensors: what references are made of.

Gradients flow through scores and floating-point tensors, by the derivatives that kernels have: what
a score function does not select has none, where torch's is NaN if its slope is infinite.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pyflash.variant import Variant
from pyflash.variant.derivative import derivatives
from pyflash.variant.expr import SCORE, Node
from pyflash.variant.scalars import Scalar
from pyflash.variant.walk import fold

_derivatives = functools.lru_cache(maxsize=256)(derivatives)
_INTEGERS = {Scalar.BOOL: torch.bool, Scalar.I32: torch.int32, Scalar.I64: torch.int64}


def _divided(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """By 0 it is 0."""

    def total(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(b == 0, torch.zeros_like(b), function(a, b.masked_fill(b == 0, 1)))

    return total


def _clamped(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """By torch.clamp for its gradient at the bounds, which it has of operands of one shape."""
    if x.is_floating_point():
        return torch.clamp(*torch.broadcast_tensors(x, low, high))
    return torch.minimum(torch.maximum(x, low), high)


def _shifted(op: str) -> Callable[..., Tensor]:
    def shift(a: Tensor, n: Tensor) -> Tensor:
        bits = torch.iinfo(a.dtype).bits
        inside, by = (n >= 0) & (n < bits), n.clamp(0, bits - 1)
        if op == "<<":
            return torch.where(inside, a << by, 0).to(a.dtype)
        return torch.where(inside, a >> by, torch.where(a < 0, -1, 0)).to(a.dtype)

    return shift


_OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "/": torch.div,
    "//": _divided(lambda a, b: torch.div(a, b, rounding_mode="floor")),
    "%": _divided(torch.remainder),
    "<<": _shifted("<<"),
    ">>": _shifted(">>"),
    "&": torch.bitwise_and,
    "|": torch.bitwise_or,
    "^": torch.bitwise_xor,
    "~": torch.bitwise_not,
    "<": torch.lt,
    "<=": torch.le,
    ">": torch.gt,
    ">=": torch.ge,
    "==": torch.eq,
    "!=": torch.ne,
    "min": torch.minimum,
    "max": torch.maximum,
    "neg": torch.neg,
    "abs": torch.abs,
    "where": torch.where,
    "clamp": _clamped,
    **{
        name: getattr(torch, name)
        for name in ("exp", "exp2", "log", "log2", "tanh", "sigmoid", "sqrt", "rsqrt", "sin", "cos")
    },
    "floor": torch.floor,
    "erf": torch.erf,
}


class Formula:
    """A normal form with the values of its parameters, in their order."""

    def __init__(self, normal: Variant, values: list[Any]) -> None:
        self.normal = normal
        self.values = {param.name: x for param, x in zip(normal.params, values, strict=True)}

    def apply(self, scores: Tensor, at: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Scores and mask. at: the indices by name, int32, which broadcast with the scores."""
        dtype = scores.dtype
        scores = scores.to(torch.promote_types(dtype, torch.float32))
        mask = self.value(self.normal.mask, scores, at)
        tensors = [x for x in self.values.values() if isinstance(x, Tensor)]
        score = _Scores.apply(self, at, mask, scores, *tensors).to(dtype)
        return score, mask.expand(score.shape)

    def shown(self, at: Mapping[str, Tensor]) -> Tensor:
        """The mask alone."""
        device = next(iter(at.values())).device
        return self.value(self.normal.mask, torch.zeros((), device=device), at)

    def value(self, root: Node, scores: Tensor, at: Mapping[str, Tensor]) -> Tensor:
        """Of a node, which may have fewer elements than there are scores."""

        def rule(node: Node, args: tuple[Tensor, ...]) -> Tensor:
            kind = _INTEGERS.get(node.kind, scores.dtype)
            if node.op == "constant":
                return torch.tensor(node.data, dtype=kind, device=scores.device)
            if node.op == "index":
                return scores if node.data == "s" else at[node.data]
            if node.op == "load":
                return self._load(node, args, kind, scores.device)
            if node.op in ("bool", "i32", "i64", "f32"):
                return _cast(args[0], kind)
            if node.op in ("f16", "bf16"):
                short = torch.float16 if node.op == "f16" else torch.bfloat16
                return args[0].float().to(short).to(kind)
            return _OPERATIONS[node.op](*args)

        return fold(root, rule)

    def _load(
        self, node: Node, indices: tuple[Tensor, ...], kind: torch.dtype, device: torch.device
    ) -> Tensor:
        value = self.values[node.data.name]
        if not isinstance(value, Tensor):
            return torch.tensor(value, dtype=kind, device=device)
        places = _places(indices, value.shape)
        return (value[places] if places else value).to(kind)

    def add_gradient(
        self, load: Node, of_load: Tensor, scores: Tensor, at: Mapping[str, Tensor], to: Tensor
    ) -> None:
        """Adds that of what a node loads, an element for each pair, to that of its tensor."""
        indices = tuple(self.value(arg, scores, at) for arg in load.args)
        places = torch.broadcast_tensors(*_places(indices, to.shape)) if indices else ()
        if places:
            to.index_put_(places, of_load.sum_to_size(places[0].shape), accumulate=True)
        else:
            to += of_load.sum()


class _Scores(torch.autograd.Function):
    """The score function of shown pairs, an element for each pair, of a formula and its tensors."""

    @staticmethod
    def forward(
        ctx: Any,
        formula: Formula,
        at: Mapping[str, Tensor],
        mask: Tensor,
        scores: Tensor,
        *tensors: Tensor,
    ) -> Tensor:
        ctx.formula, ctx.at = formula, at
        ctx.save_for_backward(mask, scores, *tensors)
        score = formula.value(formula.normal.score, torch.where(mask, scores, 0), at)
        # A score function may read less than a pair has, and not its score.
        return torch.broadcast_tensors(score, mask, scores)[0].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        mask, scores, *tensors = ctx.saved_tensors
        seen = torch.where(mask, scores, 0)
        names = [name for name, x in ctx.formula.values.items() if isinstance(x, Tensor)]
        found = {
            name: torch.zeros_like(x, dtype=grad.dtype)
            for name, x, needed in zip(names, tensors, ctx.needs_input_grad[4:], strict=True)
            if needed
        }
        of_scores = None
        for by, slope in _derivatives(ctx.formula.normal.score).items():
            if by != SCORE and by.data.name not in found:
                continue
            # NOTE: the derivative at a hidden pair may be infinite; what is selected here is not.
            part = torch.where(mask, grad * ctx.formula.value(slope, seen, ctx.at), 0)
            if by == SCORE:
                of_scores = part
            else:
                ctx.formula.add_gradient(by, part, seen, ctx.at, found[by.data.name])
        of_tensors = (
            found[name].to(x.dtype) if name in found else None
            for name, x in zip(names, tensors, strict=True)
        )
        return None, None, None, of_scores, *of_tensors


def _places(indices: tuple[Tensor, ...], shape: torch.Size) -> tuple[Tensor, ...]:
    """The nearest that there are; one below 0 counts from the end."""
    return tuple(
        torch.where(index < 0, index + extent, index).long().clamp(0, extent - 1)
        for index, extent in zip(indices, shape, strict=True)
    )


def _cast(value: Tensor, kind: torch.dtype) -> Tensor:
    """A float becomes an integer cut towards 0, saturated, 0 for NaN."""
    if value.is_floating_point() and not kind.is_floating_point and kind is not torch.bool:
        ends = torch.iinfo(kind)
        cut = value.double().nan_to_num(nan=0.0).trunc()
        inside = cut.clamp(ends.min, math.nextafter(-float(ends.min), 0)).to(kind)
        return torch.where(cut >= -float(ends.min), ends.max, inside).to(kind)
    return value.to(kind)
