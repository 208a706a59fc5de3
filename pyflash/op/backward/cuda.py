"""Gradients on a GPU, by PyTorch's flash backward."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

# A grid of PyTorch's kernels has a block in y for each sequence, in z for each head.
MAX_GRID = 65535


def bwd(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, seqlen_q = q.shape[:2]
    seqlen_k = k.shape[1]
    if q.numel() == 0 or k.numel() == 0:
        return tuple(torch.zeros_like(x) for x in (q, k, v))
    if batch > MAX_GRID:
        gradients = tuple(torch.empty_like(x) for x in (q, k, v))
        for i in range(0, batch, MAX_GRID):
            part = slice(i, i + MAX_GRID)
            parts = bwd(*(x[part] for x in (grad_out, out, lse, q, k, v)), **options)
            for whole, values in zip(gradients, parts, strict=True):
                whole[part] = values
        return gradients
    left, right = windows = _windows(seqlen_q, seqlen_k, **options)
    if seqlen_q > seqlen_k + 1 and (right >= seqlen_k or (left >= 0 and right < 0)):
        # PyTorch takes any right window of seqlen_k or more, and none beside a left one, for one
        # of seqlen_k, which cuts something here. For packed sequences it goes by max_seqlen_k.
        return _bwd_packed(grad_out, out, lse, q, k, v, **options)
    sequences = (None, None, seqlen_q, seqlen_k)
    return _flash_backward(grad_out, out, lse, (q, k, v), sequences, windows, options)


def _bwd_packed(
    grad_out: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """What `bwd` does, by `bwd_varlen`."""
    batch = len(q)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=q.device)
    seqlen_q, seqlen_k = q.shape[1], k.shape[1]
    packed = bwd_varlen(
        grad_out.flatten(0, 1),
        out.flatten(0, 1),
        lse.transpose(0, 1).flatten(1, 2),
        *(x.flatten(0, 1) for x in (q, k, v)),
        starts * seqlen_q,
        starts * seqlen_k,
        seqlen_q,
        seqlen_k,
        **options,
    )
    gradients = tuple(torch.empty_like(x) for x in (q, k, v))
    for gradient, values in zip(gradients, packed, strict=True):
        gradient.copy_(values.unflatten(0, (batch, -1)))
    return gradients


def bwd_varlen(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    if q.numel() == 0 or k.numel() == 0 or max_seqlen_q == 0 or max_seqlen_k == 0:
        return tuple(torch.zeros_like(x) for x in (q, k, v))
    windows = _windows(max_seqlen_q, max_seqlen_k, **options)
    if windows not in ((-1, -1), (-1, 0)):
        max_seqlen_k = max(max_seqlen_q, max_seqlen_k)  # see bwd; else it sizes the grid only
    # Wrong values lead to wrong gradients, but to nothing outside of the tensors.
    cu_seqlens_q, cu_seqlens_k = cu_seqlens_q.clamp(0, len(q)), cu_seqlens_k.clamp(0, len(k))
    sequences = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _flash_backward(grad_out, out, lse, (q, k, v), sequences, windows, options)


def _windows(
    seqlen_q: int,
    seqlen_k: int,
    *,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    **others: Any,
) -> tuple[int, int]:
    """The windows, -1 where nothing is cut."""
    if causal:
        window_right = 0
    return (
        window_left if window_left < seqlen_k - 1 else -1,
        window_right if window_right < seqlen_q - 1 else -1,
    )


def _flash_backward(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    qkv: tuple[Tensor, Tensor, Tensor],
    sequences: tuple[Tensor | None, Tensor | None, int, int],
    windows: tuple[int, int],
    options: dict[str, Any],
) -> tuple[Tensor, Tensor, Tensor]:
    q = qkv[0]
    grad_out = grad_out.contiguous()
    if grad_out.data_ptr() % 16:
        grad_out = grad_out.clone()
    rng_state = torch.empty(2, dtype=torch.uint64, device=q.device)  # of dropout, of which is none
    return torch.ops.aten._flash_attention_backward(
        grad_out,
        *qkv,
        out.contiguous(),
        # The lse of a row with nothing to attend is infinity there, so that P = exp(S - lse) = 0.
        lse.nan_to_num(nan=math.nan, posinf=math.inf, neginf=math.inf).contiguous(),
        *sequences,
        0.0,
        windows == (-1, 0),
        rng_state,
        rng_state,
        scale=options.get("softmax_scale"),
        window_size_left=windows[0],
        window_size_right=windows[1],
    )
