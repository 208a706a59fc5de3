"""Gradients of attention with a variant, of calls of op backward: inputs, and what is exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyflash.op.variants.arguments import Captured
from pyflash.op.variants.reference import attention_variant_ref


class Extents(NamedTuple):
    batch: int
    heads: int
    heads_kv: int
    q_len: int
    k_len: int
    d_head: int = 64


class GradientCall(NamedTuple):
    inputs: tuple[Any, ...]  # grad_out, out, lse, q, k, v, and the lengths where it is packed
    grad_lse: Tensor
    exact: tuple[Tensor, ...]  # dq, dk, dv in fp64


def make_call(
    at: Extents,
    dtype: torch.dtype,
    captured: Captured,
    options: Mapping[str, Any],
    lengths: tuple[Sequence[int], Sequence[int]] | None = None,
) -> GradientCall:
    """Random tensors and their gradients in fp64: padded, or packed sequences of these lengths,
    each of which begins a tensor of the padded ones."""
    generator = torch.Generator().manual_seed(at.q_len)
    sizes = ((at.q_len, at.heads), *[(at.k_len, at.heads_kv)] * 2, (at.q_len, at.heads))
    tensors = [
        torch.randn(at.batch, *size, at.d_head, generator=generator).to(dtype) for size in sizes
    ]
    starts: tuple[Any, ...] = ()
    if lengths is not None:
        of_rows = (lengths[0], lengths[1], lengths[1], lengths[0])
        tensors = [
            torch.cat([x[b, :n] for b, n in enumerate(of)])
            for x, of in zip(tensors, of_rows, strict=True)
        ]
        starts = tuple(torch.tensor([0, *n]).cumsum(0, dtype=torch.int32) for n in lengths)
    *inputs, grad_out = tensors
    longest = () if lengths is None else tuple(map(max, lengths))
    return call_of(inputs, captured, grad_out, (*starts, *longest), options)


def call_of(
    inputs: Sequence[Tensor],
    captured: Captured,
    grad_out: Tensor | None = None,
    packing: tuple[Any, ...] = (),
    options: Mapping[str, Any] | None = None,
) -> GradientCall:
    """That of q, k and v, by default with a random gradient of the output. packing: cu_seqlens and
    the longest lengths."""
    generator = torch.Generator().manual_seed(len(inputs[0]))
    leaves = [x.double().requires_grad_() for x in inputs]
    out, lse = attention_variant_ref(
        *leaves, captured, *packing[:2], dtype=torch.float64, **(options or {})
    )
    if grad_out is None:
        grad_out = torch.randn(out.shape, generator=generator).to(inputs[0].dtype)
    empty = lse.isinf()
    grad_lse = torch.randn(lse.shape, generator=generator).masked_fill(empty.detach(), 0)
    exact = torch.autograd.grad(
        (out, lse.masked_fill(empty, 0)), leaves, (grad_out.double(), grad_lse.double())
    )
    results = (grad_out, out.detach().to(grad_out.dtype), lse.detach().float())
    return GradientCall((*results, *inputs, *packing), grad_lse, exact)


def errors(found: Sequence[Tensor], exact: Sequence[Tensor]) -> dict[str, float]:
    """As shares of the norm of a gradient; NaN where one is."""
    return {
        name: ((one.double() - other).norm() / max(other.norm().item(), 1e-9)).item()
        for name, one, other in zip(("dq", "dk", "dv"), found, exact, strict=True)
    }
