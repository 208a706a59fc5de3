"""Fake implementations of the ops, for torch.compile and the meta device: shapes, dtypes, strides.

The op itself refuses wrong arguments. A fake refuses, in the op's words (cute_kernels/bindings/),
only what would fail far from its cause in a compiled model, or would not reach the op: one tensor
on the meta device leads a call to these functions, wherever the others are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyflash.config import parse_short_form
from pyflash.op.errors import check_device, dtype_name, require
from pyflash.op.fp8 import E4M3
from pyflash.op.options import TENSORS

_PADDED = ("batch", "seqlen", "heads", "d_head")
_PACKED = ("total", "heads", "d_head")
_PAGES = ("num_pages", "page_size", "heads", "d_head")
_DTYPES = {torch.float16: "FP16", torch.bfloat16: "BF16"}


@torch.library.register_fake("pyflash::fwd")
def _fwd(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    check_forward(q, k, v, False, **options)
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
    check_device(q, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    check_forward(q, k, v, True, **options)
    total_q, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((heads, total_q), dtype=torch.float32)


@torch.library.register_fake("pyflash::fwd_paged")
def _fwd_paged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seqlens_k: Tensor,
    cu_seqlens_q: Tensor | None = None,
    max_seqlen_q: int | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    schedule: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    axes = _PADDED if cu_seqlens_q is None else _PACKED
    dtype = q.dtype if k_scale is None and v_scale is None else E4M3
    _check_tensors(axes, _PAGES, q, dtype, k_cache=k_cache, v_cache=v_cache)
    check_device(q, block_table=block_table, seqlens_k=seqlens_k)
    if cu_seqlens_q is not None:
        check_device(q, cu_seqlens_q=cu_seqlens_q)
    if schedule is not None:
        check_device(q, schedule=schedule)
    _check_options(q, **options)
    *batch, seqlen_q, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty((*batch, heads, seqlen_q), dtype=torch.float32)


@torch.library.register_fake("pyflash::fwd_paged_variant")
def _fwd_paged_variant(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seqlens_k: Tensor,
    text: str,
    tensors: list[Tensor] | None,
    reals: list[float] | None,
    integers: list[int] | None,
    cu_seqlens_q: Tensor | None = None,
    max_seqlen_q: int | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    for tensor in tensors or []:
        check_device(q, **{"a tensor of the variant": tensor})
    lengths = (block_table, seqlens_k, cu_seqlens_q, max_seqlen_q)
    return _fwd_paged(q, k_cache, v_cache, *lengths, **options)


@torch.library.register_fake("pyflash::fwd_paged.out")
def _fwd_paged_out(*inputs: Any, out: Tensor, lse: Tensor, **options: Any) -> None:
    for name, given, made in zip(
        ("out", "lse"), (out, lse), _fwd_paged(*inputs, **options), strict=True
    ):
        check_device(inputs[0], **{name: given})
        require(
            given.dtype == made.dtype,
            f"{name} is {dtype_name(given.dtype)}: expected {dtype_name(made.dtype)}",
        )
        require(
            given.shape == made.shape,
            f"{name} has shape {tuple(given.shape)}: expected {tuple(made.shape)}",
        )


def check_forward(q: Tensor, k: Tensor, v: Tensor, packed: bool, **options: Any) -> None:
    """q, k and v, and the options."""
    axes = _PACKED if packed else _PADDED
    _check_tensors(axes, axes, q, q.dtype, k=k, v=v)
    _check_options(q, **options)


def _check_tensors(
    axes: tuple[str, ...],
    axes_k: tuple[str, ...],
    q: Tensor,
    dtype: torch.dtype,
    **others: Tensor,
) -> None:
    """others: K and V, of this dtype."""
    check_device(q, **others)
    require(q.dtype in _DTYPES, f"q is {dtype_name(q.dtype)}: expected float16 or bfloat16")
    for name, x in {"q": q, **others}.items():
        expected = axes if name == "q" else axes_k
        require(
            x.dtype == (q.dtype if name == "q" else dtype),
            f"{name} is {dtype_name(x.dtype)}: expected {dtype_name(dtype)}"
            f"{' as q' if dtype == q.dtype else ''}",
        )
        require(
            x.dim() == len(expected),
            (
                f"{name} has shape {tuple(x.shape)}: expected {len(expected)} dimensions, "
                f"({', '.join(expected)})"
            ),
        )


def _check_options(q: Tensor, config: str = "", **others: Any) -> None:
    tensors = {name: x for name in TENSORS if (x := others.get(name)) is not None}
    check_device(q, **tensors)
    if not config:
        return
    parsed, d_head = parse_short_form(config), q.shape[-1]
    require(
        parsed.dtype.name == _DTYPES[q.dtype],
        f"config '{config}' is for {parsed.dtype.name}, q is {_DTYPES[q.dtype]}",
    )
    require(
        not isinstance(d_head, int) or parsed.d_head >= d_head,
        f"config '{config}' is for d_head up to {parsed.d_head}, q has d_head {d_head}",
    )
