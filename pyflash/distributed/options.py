"""The options of attention as ranks of a group take them: casts, checks, words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pyflash.distributed.head_parallel import why_not
from pyflash.op.autograd.formulas import cast
from pyflash.op.backward import refuse_what_has_no_gradients
from pyflash.op.errors import check_type
from pyflash.op.options import TENSORS, Scope, of_scope, tensors_of
from pyflash.op.selection import TORCH_DTYPES, Problem, select


def in_words(x: Tensor | None, first_axis: int = 0) -> str | None:
    """Shape, from this axis on, and dtype."""
    if x is None:
        return None
    return f"{tuple(x.shape[first_axis:])} {x.dtype}".replace("torch.", "")


def autocast(
    qkv: tuple[Tensor, ...], options: Mapping[str, Any]
) -> tuple[tuple[Tensor, ...], Mapping[str, Any]]:
    """As `pyflash.attention` casts."""
    device_type = qkv[0].device.type
    if not torch.is_autocast_enabled(device_type):
        return qkv, options
    return cast(qkv, options, device_type)


def check_positional(
    q: Tensor, k: Tensor, n_ranks: int, method: str, options: Mapping[str, Any]
) -> None:
    """Refuses options that need whole sequences, because ranks hold parts of them."""
    for name in of_scope(options, Scope.CALL):
        raise ValueError(
            f"pyflash: {name} depends on the places of sequences and heads among all, which ranks "
            "do not know: expected its default"
        )
    for name in of_scope(options, Scope.POSITION):
        if method == "ring":
            raise ValueError(
                f"pyflash: {name} depends on positions in the whole sequence, which parts of a "
                "ring do not know: expected method = 'all_to_all'"
            )
        if reason := why_not(q.shape[-2], k.shape[-2], n_ranks):
            raise ValueError(f"pyflash: {reason}, which {name} needs")


def check_with_op(
    q: Tensor, k: Tensor, v: Tensor, n_sequences: int | None, options: dict[str, Any]
) -> None:
    """Raises what the op would for such tensors and options. n_sequences: of packed ones."""
    on_device = {x.device for x in (q, k, v)}
    if len(on_device) > 1:
        raise ValueError(f"pyflash: q, k and v are on {on_device}: expected one device")
    for name, x in zip(TENSORS, tensors_of(options), strict=True):
        check_type(name, x, "tensor or None")
        if x is not None and x.device != q.device:
            raise ValueError(f"pyflash: {name} is on {x.device}: expected {q.device}, where q is")
    shapes = [torch.empty_like(x, device="meta") for x in (q, k, v)]
    packed = n_sequences is not None
    if packed:
        shapes = [x.unsqueeze(0) for x in shapes]
    numbers = {name: x for name, x in options.items() if name not in TENSORS}
    torch.ops.pyflash.fwd(*shapes, **numbers)  # shapes and dtypes
    (batch, seqlen_q, heads_q, d_head), (_, seqlen_k, heads_kv, _) = (x.shape for x in shapes[:2])
    select(  # options
        Problem(
            batch=n_sequences if packed else batch,
            packed=packed,
            heads_q=heads_q,
            heads_kv=heads_kv,
            seqlen_q=seqlen_q,
            seqlen_k=seqlen_k,
            total_q=seqlen_q if packed else 0,
            total_k=seqlen_k if packed else 0,
            d_head=d_head,
            dtype=next(name for name, dtype in TORCH_DTYPES.items() if dtype == q.dtype),
            device="cpu",
            options=options,
        )
    )


def refuse_gradients(q: Tensor, k: Tensor, v: Tensor, options: Mapping[str, Any]) -> None:
    tensors = [x for x in (q, k, v, *tensors_of(options)) if x is not None]
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        refuse_what_has_no_gradients(q, None, (), options)
