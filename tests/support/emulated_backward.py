"""The kernels of op backward on the emulated machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyflash.config import DType, KernelConfig, parse
from pyflash.op.reference import attended_with, attention_ref
from pyflash.op.selection import TORCH_DTYPES

CONFIGS = {
    name: parse(text)
    for name, text in {
        "wide": "(FP16, 128, 64, 128, 2): sm90_bwd+stages_3+overlap",
        "narrow": "(BF16, 64, 128, 128, 2): sm90_bwd+stages_3+dQ_by_red+early_dP",
        "narrow_in_order": "(FP16, 64, 128, 128, 2): sm90_bwd+stages_2+early_dP",
        "in_turn": "(BF16, 128, 64, 128, 2): sm90_bwd+stages_2",
        "narrow_overlap": "(FP16, 64, 128, 128, 2): sm90_bwd+stages_2+overlap",
        "column_parts": "(BF16, 256, 64, 128, 2): sm90_bwd+stages_2+dQ_by_red",
        "narrower_slabs": "(FP16, 96, 64, 128, 2): sm90_bwd+stages_4+overlap",
        "narrower_slabs_by_red": "(BF16, 96, 64, 128, 2): sm90_bwd+stages_4+overlap+dQ_by_red",
        "shared_keys": "(FP16, 192, 64, 64, 2): sm90_bwd+stages_2",
        "shared_keys_by_red": "(BF16, 192, 64, 64, 2): sm90_bwd+stages_3+overlap+dQ_by_red",
    }.items()
}
# Errors, as shares of the norm of a gradient.
LIMITS = {DType.FP16: 1e-3, DType.BF16: 8e-3}


@dataclass(frozen=True)
class Shape:
    batch: int
    heads: int
    heads_kv: int
    seqlen_q: int
    seqlen_k: int
    narrower_by: int = 0  # columns, than the config
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    below: int = 0  # by how much scores are below 0, which those of keys past the end are not


class Call(NamedTuple):
    inputs: tuple[Tensor, ...]  # grad_out, out, lse, q, k, v
    grad_lse: Tensor
    exact: tuple[Tensor, ...]  # dq, dk, dv in fp64


def make_call(config: KernelConfig, shape: Shape) -> Call:
    """Random tensors, and the gradients by them in fp64."""
    torch.manual_seed(0)
    d_head = config.d_head - shape.narrower_by
    of_queries = (shape.batch, shape.seqlen_q, shape.heads, d_head)
    of_keys = (shape.batch, shape.seqlen_k, shape.heads_kv, d_head)
    dtype = TORCH_DTYPES[config.dtype]
    q, k, v = (torch.randn(size).to(dtype) for size in (of_queries, of_keys, of_keys))
    if shape.below:
        q[..., 0], k[..., 0] = 16, -shape.below * d_head**0.5 / 16
    grad_out = torch.randn(of_queries).to(dtype)
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    out, lse = attention_ref(*leaves, dtype=torch.float64, **shape.options)
    rows = torch.arange(shape.seqlen_q)
    empty = ~attended_with(shape.options, rows, shape.seqlen_q, shape.seqlen_k).any(dim=1)
    grad_lse = torch.randn(lse.shape)
    upstream = (grad_out.double(), grad_lse.double().masked_fill(empty, 0))
    lse_of_some = lse.masked_fill(empty, 0)
    exact = torch.autograd.grad((out, lse_of_some), leaves, upstream)
    results = (grad_out, out.detach().to(dtype), lse.detach().float())
    return Call((*results, q, k, v), grad_lse, exact)


def wrong(
    config: KernelConfig, shape: Shape, call: Call, gradients: tuple[Tensor, ...]
) -> dict[str, float]:
    """The relative errors that exceed their limit, and those that are NaN."""
    # The terms of dq and dk in the column that is far below 0 cancel.
    limit = LIMITS[config.dtype] * (10 if shape.below else 1)
    errors = {
        name: ((found.double() - exact).norm() / exact.norm()).item()
        for name, found, exact in zip(("dq", "dk", "dv"), gradients, call.exact, strict=True)
    }
    return {name: error for name, error in errors.items() if not error < limit}
