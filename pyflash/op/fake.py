"""Fake implementations of the ops, for torch.compile and the meta device: shapes, dtypes, strides.

The op itself refuses wrong arguments. A fake refuses, in the op's words (cute_kernels/bindings/),
only what would fail far from its cause in a compiled model, or would not reach the op.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyflash.config import parse_short_form
from pyflash.op.options import TENSORS

_DTYPES = {torch.float16: "FP16", torch.bfloat16: "BF16"}


@torch.library.register_fake("pyflash::fwd")
def _fwd(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    _check_tensors(("batch", "seqlen", "heads", "d_head"), q=q, k=k, v=v)
    _check_options(q, **options)
    batch, seqlen_q, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((batch, heads, seqlen_q), dtype=torch.float32)


@torch.library.register_fake("pyflash::fwd_varlen")
def _fwd_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    _check_tensors(("total", "heads", "d_head"), q=q, k=k, v=v)
    _check_device(q, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    _check_options(q, **options)
    total_q, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((heads, total_q), dtype=torch.float32)


def _check_tensors(axes: tuple[str, ...], q: Tensor, k: Tensor, v: Tensor) -> None:
    _check_device(q, k=k, v=v)
    _check(q.dtype in _DTYPES, f"q is {_name(q.dtype)}: expected float16 or bfloat16")
    for name, x in (("q", q), ("k", k), ("v", v)):
        _check(
            x.dtype == q.dtype,
            f"{name} is {_name(x.dtype)}: expected {_name(q.dtype)} as q",
        )
        _check(
            x.dim() == len(axes),
            (
                f"{name} has shape {tuple(x.shape)}: expected {len(axes)} dimensions, "
                f"({', '.join(axes)})"
            ),
        )


def _check_device(q: Tensor, **others: Tensor) -> None:
    """One tensor on the meta device leads a call to these functions, wherever the others are."""
    for name, x in others.items():
        _check(
            x.device == q.device,
            f"{name} is on {x.device}: expected {q.device}, where q is",
        )


def _check_options(q: Tensor, config: str = "", **others: Any) -> None:
    tensors = {name: x for name in TENSORS if (x := others.get(name)) is not None}
    _check_device(q, **tensors)
    if not config:
        return
    parsed, d_head = parse_short_form(config), q.shape[-1]
    _check(
        parsed.dtype.name == _DTYPES[q.dtype],
        f"config '{config}' is for {parsed.dtype.name}, q is {_DTYPES[q.dtype]}",
    )
    _check(
        not isinstance(d_head, int) or parsed.d_head >= d_head,
        f"config '{config}' is for d_head up to {parsed.d_head}, q has d_head {d_head}",
    )


def _check(condition: bool, sentence: str) -> None:
    if not condition:
        raise ValueError(f"pyflash: {sentence}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
