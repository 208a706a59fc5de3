"""The gradients of attention as a reference: those of `pyflash.op.reference` by autograd, and how
far a correct backward pass may be off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyflash.op.options import AttentionOptions, softmax_scale_of
from pyflash.op.reference import attention_ref, attention_varlen_ref, tolerance

if TYPE_CHECKING:
    from typing_extensions import Unpack

_NAMES = ("dq", "dk", "dv")
# What float32 leaves where the terms of a gradient cancel.
_CANCELLED = 1e-5
_OF_SUMS = 2.0**-20  # of float32 sums that are rounded a few times


@dataclass(frozen=True, slots=True)
class ExpectedGradients:
    """dq, dk and dv to be expected, with a bound on the error of each, by `tolerance`."""

    exact: tuple[Tensor, ...]
    bounds: tuple[float, ...]

    def worst(self, gradients: Sequence[Tensor]) -> tuple[str, float, float]:
        """(name, error, bound) of the one that is worst against its bound; a NaN is worst."""
        found = []
        for name, got, exact, bound in zip(_NAMES, gradients, self.exact, self.bounds, strict=True):
            error = (got.to(exact.dtype) - exact).abs().max().item() if got.numel() else 0.0
            found.append((name, error, bound))
        return max(found, key=lambda one: one[1] / one[2] if one[1] == one[1] else torch.inf)

    def check(self, gradients: Sequence[Tensor]) -> float:
        """Returns the error of the worst. Raises AssertionError where it is beyond its bound, or a
        shape or dtype is wrong."""
        for name, got, exact in zip(_NAMES, gradients, self.exact, strict=True):
            assert got.shape == exact.shape, f"{name} is {got.shape}, expected {exact.shape}"
        name, error, bound = self.worst(gradients)
        if not error <= bound:
            raise AssertionError(f"{name}: error {error:.3e}, bound {bound:.3e}")
        return error


def gradients_ref(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad_out: Tensor,
    *,
    dtype: torch.dtype,
    grad_lse: Tensor | None = None,
    cu_seqlens: Sequence[Tensor] = (),
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, ...]:
    """dq, dk and dv of attention that is computed in `dtype`. cu_seqlens: those of q and of k, of
    packed sequences."""
    leaves = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
    attend = attention_varlen_ref if cu_seqlens else attention_ref
    out, lse = attend(*leaves, *cu_seqlens, dtype=dtype, **options)
    if grad_lse is None:
        return torch.autograd.grad(out, leaves, grad_out.to(dtype))
    known = lse.masked_fill(lse == -math.inf, 0)  # a row without keys has no gradient
    return torch.autograd.grad((out, known), leaves, (grad_out.to(dtype), grad_lse.to(dtype)))


def expect_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad_out: Tensor,
    *,
    dtype: torch.dtype = torch.float64,
    grad_lse: Tensor | None = None,
    cu_seqlens: Sequence[Tensor] = (),
    **options: Unpack[AttentionOptions],
) -> ExpectedGradients:
    """`dtype`: that the reference is computed in; the others: as in `gradients_ref`."""
    more = {"grad_lse": grad_lse, "cu_seqlens": cu_seqlens, **options}
    exact, rough = (gradients_ref(q, k, v, grad_out, dtype=to, **more) for to in (dtype, q.dtype))
    scale = softmax_scale_of(options, q.shape[-1])
    left = _left_of_dS(grad_out, v) * scale
    of_rounding = (left * _largest(k), left * _largest(q), 0.0)
    bounds = (
        tolerance(a, b) + _CANCELLED + more
        for a, b, more in zip(exact, rough, of_rounding, strict=True)
    )
    return ExpectedGradients(exact, tuple(bounds))


def _left_of_dS(grad_out: Tensor, v: Tensor) -> float:
    """What float32 leaves of dP - delta where the two are equal, as where a row attends one key:
    each is a sum of d_head products, whose size is that of the norms' product over the root of
    d_head."""
    if grad_out.numel() == 0 or v.numel() == 0:
        return 0.0
    norms = (x.double().norm(dim=-1).max().item() for x in (grad_out, v))
    return math.prod(norms) / math.sqrt(v.shape[-1]) * _OF_SUMS


def _largest(x: Tensor) -> float:
    return x.abs().max().item() if x.numel() else 0.0
