"""Calls whose gradients are held against fp64, on whatever device: the matrix of the kernels of op
backward."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import pyflash
from pyflash.op.reference_gradients import ExpectedGradients, expect_gradients

MASKS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_left": 70, "window_right": 9},
    "left": {"window_left": 100},
    "right": {"window_right": 30},
    "causal_window": {"causal": True, "window_left": 37},
}
# batch, heads, heads_kv, seqlen_q, seqlen_k
SIZES = {
    "whole_blocks": (2, 2, 2, 256, 256),
    "ragged": (1, 3, 3, 197, 331),
    "fewer_keys": (2, 2, 2, 333, 170),  # under a mask the first rows have nothing to attend
    "gqa": (2, 6, 2, 259, 300),
    "mqa": (1, 5, 1, 131, 200),
    "one_query": (3, 4, 2, 1, 257),
    "one_key": (1, 2, 2, 130, 1),
    "many_tiles": (2, 16, 4, 1031, 1500),
}
# The layouts of q, k, v and grad_out.
LAYOUTS = {
    "contiguous": ("contiguous",) * 4,
    "heads_first": ("heads_first",) * 4,
    "sliced": ("sliced", "sliced", "contiguous", "contiguous"),
    "expanded_grad": ("contiguous", "heads_first", "sliced", "expanded"),
    "padded_grad": ("heads_first", "contiguous", "contiguous", "sliced"),
}


@dataclass(frozen=True)
class Case:
    dtype: torch.dtype
    d_head: int
    mask: str
    size: str
    layout: str = "contiguous"
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return "-".join(map(str, (dtype, self.d_head, self.mask, self.size, self.layout)))

    @property
    def all_options(self) -> dict[str, Any]:
        return MASKS[self.mask] | self.options

    def problem(self, device: str) -> pyflash.Problem:
        batch, heads, heads_kv, seqlen_q, seqlen_k = SIZES[self.size]
        return pyflash.Problem(
            batch=batch,
            heads_q=heads,
            heads_kv=heads_kv,
            seqlen_q=seqlen_q,
            seqlen_k=seqlen_k,
            d_head=self.d_head,
            dtype="FP16" if self.dtype == torch.float16 else "BF16",
            device=device,
            options=self.all_options,
        )


_DTYPES = (torch.float16, torch.bfloat16)
CASES = [
    *(Case(*one) for one in itertools.product(_DTYPES, (64, 128), MASKS, SIZES)),
    # Heads that are narrower than the config's, and every layout.
    *(Case(torch.bfloat16, d, "causal", "gqa") for d in (8, 40, 72, 120)),
    *(
        Case(dtype, 128, mask, size, layout)
        for dtype in _DTYPES
        for mask in ("full", "causal")
        for size in ("ragged", "gqa")
        for layout in LAYOUTS
        if layout != "contiguous"
    ),
    *(
        Case(dtype, d, mask, size)
        for dtype, d in (
            (torch.bfloat16, 96),
            (torch.float16, 192),
            *((dtype, 256) for dtype in _DTYPES),
        )
        for mask in MASKS
        for size in ("ragged", "fewer_keys", "gqa")
    ),
    *(Case(torch.bfloat16, d, mask, "mqa") for d in (136, 192, 200) for mask in ("full", "causal")),
    Case(torch.float16, 128, "full", "ragged", options={"softmax_scale": 1e-3}),
    Case(torch.bfloat16, 64, "causal", "gqa", options={"softmax_scale": 0.7}),
]


def tensor(size: tuple[int, ...], layout: str, dtype: torch.dtype, device: str) -> Tensor:
    """Normal random numbers, (batch, rows, heads, d_head)."""
    if layout == "expanded":
        return torch.randn(size[-1:], dtype=dtype, device=device).expand(size)
    if layout == "heads_first":
        batch, rows, heads, d_head = size
        return torch.randn(batch, heads, rows, d_head, dtype=dtype, device=device).transpose(1, 2)
    if layout == "sliced":  # a view of more columns, between NaN
        wide = torch.full((*size[:-1], size[-1] + 16), torch.nan, dtype=dtype, device=device)
        view = wide[..., 8:-8]
        return view.copy_(torch.randn(size, dtype=dtype, device=device))
    return torch.randn(size, dtype=dtype, device=device)


def make(case: Case, device: str) -> tuple[list[Tensor], Tensor]:
    """(q, k, v) and the gradient of out."""
    torch.manual_seed(0)
    batch, heads, heads_kv, seqlen_q, seqlen_k = SIZES[case.size]
    of_queries = (batch, seqlen_q, heads, case.d_head)
    of_keys = (batch, seqlen_k, heads_kv, case.d_head)
    sizes = (of_queries, of_keys, of_keys, of_queries)
    *qkv, grad_out = (
        tensor(size, layout, case.dtype, device)
        for size, layout in zip(sizes, LAYOUTS[case.layout], strict=True)
    )
    return qkv, grad_out


def gradients(case: Case, qkv: list[Tensor], grad_out: Tensor) -> tuple[Tensor, ...]:
    """Through autograd of `pyflash.attention`."""
    leaves = [x.detach().requires_grad_() for x in qkv]
    out = pyflash.attention(*leaves, **case.all_options)
    return torch.autograd.grad(out, leaves, grad_out)


def expected(case: Case, qkv: list[Tensor], grad_out: Tensor) -> ExpectedGradients:
    return expect_gradients(*qkv, grad_out, **case.all_options)
