"""Packed sequences for the emulated kernels of op backward, with NaN around them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyflash.config import KernelConfig
from pyflash.op.reference import attended_with, attention_ref, of_sequence
from pyflash.op.selection import TORCH_DTYPES


@dataclass(frozen=True)
class Packed:
    heads: int
    heads_kv: int
    lengths_q: tuple[int, ...]
    lengths_k: tuple[int, ...]
    narrower_by: int = 0  # columns, than the config
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    # The sequence whose rows are NaN in every tensor, as are its gradients; none of the others' is.
    nan_sequence: int | None = None
    # Rows of NaN before the first sequence and behind the last one, whose gradients are 0.
    before: int = 0
    behind: int = 0


class PackedCall(NamedTuple):
    inputs: tuple[Any, ...]  # grad_out, out, lse, q, k, v, and the lengths
    grad_lse: Tensor
    exact: tuple[Tensor, ...]  # dq, dk, dv in fp64; NaN of the sequence of NaN


def make_packed_call(config: KernelConfig, packed: Packed) -> PackedCall:
    """Random tensors, and the gradients by them in fp64, sequence by sequence."""
    torch.manual_seed(0)
    d_head, dtype = config.d_head - packed.narrower_by, TORCH_DTYPES[config.dtype]
    starts = [
        torch.tensor([packed.before, *lengths]).cumsum(0).int()
        for lengths in (packed.lengths_q, packed.lengths_k)
    ]
    total_q, total_k = (int(x[-1]) + packed.behind for x in starts)
    of_queries, of_keys = (total_q, packed.heads, d_head), (total_k, packed.heads_kv, d_head)
    sizes = (of_queries, of_keys, of_keys, of_queries)
    q, k, v, grad_out = (torch.randn(size).to(dtype) for size in sizes)
    out, lse = torch.zeros(of_queries, dtype=dtype), torch.zeros(packed.heads, total_q)
    grad_lse = torch.randn(lse.shape)
    exact = tuple(torch.zeros(x.shape, dtype=torch.float64) for x in (q, k, v))
    for tensors, at in (((q, grad_out, out), starts[0]), ((k, v), starts[1])):
        for x in tensors:
            x[: at[0]] = x[at[-1] :] = torch.nan
    for x in (lse, grad_lse):
        x[:, : starts[0][0]] = x[:, starts[0][-1] :] = torch.nan
    for b, (n_q, n_k) in enumerate(zip(packed.lengths_q, packed.lengths_k, strict=True)):
        rows_q, rows_k = (slice(int(x[b]), int(x[b + 1])) for x in starts)
        rows = (rows_q, rows_k, rows_k)
        if b == packed.nan_sequence:
            for x, of in zip((q, k, v, grad_out, out), (*rows, rows_q, rows_q), strict=True):
                x[of] = torch.nan
            lse[:, rows_q] = grad_lse[:, rows_q] = torch.nan
            for x, of in zip(exact, rows, strict=True):
                x[of] = torch.nan
            continue
        options = of_sequence(packed.options, b, packed.heads)
        leaves = [
            x[of][None].double().requires_grad_() for x, of in zip((q, k, v), rows, strict=True)
        ]
        o, s = attention_ref(*leaves, dtype=torch.float64, **options)
        empty = ~attended_with(options, torch.arange(n_q), n_q, n_k).any(dim=1)
        upstream = (grad_out[rows_q][None].double(), grad_lse[None, :, rows_q].double())
        upstream = (upstream[0], upstream[1].masked_fill(empty, 0))
        found = torch.autograd.grad(
            (o, s.masked_fill(empty, 0)), leaves, upstream, materialize_grads=True
        )
        for x, of, values in zip(exact, rows, found, strict=True):
            x[of] = values[0]
        out[rows_q], lse[:, rows_q] = o[0].detach().to(dtype), s[0].detach().float()
    beside = packed.before + packed.behind  # the longest lengths have room for all rows
    lengths = (*starts, max(packed.lengths_q) + beside, max(packed.lengths_k) + beside)
    return PackedCall((grad_out, out, lse, q, k, v, *lengths), grad_lse, exact)


def wrong_packed(call: PackedCall, gradients: tuple[Tensor, ...], limit: float) -> dict[str, float]:
    """The relative errors that exceed the limit, and those that are NaN where none is expected. The
    sequence of NaN may have any gradients."""
    errors = {}
    for name, found, exact in zip(("dq", "dk", "dv"), gradients, call.exact, strict=True):
        counts = ~exact.isnan()
        norm = exact[counts].norm().clamp(min=1e-30)
        errors[name] = ((found.double() - exact)[counts].norm() / norm).item()
    return {name: error for name, error in errors.items() if not error < limit}
