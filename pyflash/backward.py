"""The gradients of attention: `torch.ops.pyflash.bwd` and `torch.ops.pyflash.bwd_varlen`.

From the gradient of out to those of q, k and v, with out and lse as the forward pass returned them:

    P  = exp(S - lse)                        S: the scores, scaled, capped and masked
    dV = P^T dO
    dS = P * (dO V^T - rowsum(dO * O))
    dQ = softmax_scale * dS K, dK = softmax_scale * dS^T Q

On a GPU this is PyTorch's flash backward, on the CPU the formula in float32.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyflash.reference import attended

Gradients = tuple[Tensor, Tensor, Tensor]

# The grid of PyTorch's flash backward has a block in y for each sequence, in z for each head.
_MAX_GRID = 65535
# Scores held at a time on the CPU.
_MAX_SCORES = 1 << 22

_OPTIONS = (
    "float? softmax_scale=None, bool causal=False, int window_left=-1, int window_right=-1, "
    "float softcap=0.0"
)
library = torch.library.Library("pyflash", "FRAGMENT")
library.define(
    f"bwd(Tensor grad_out, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, *, {_OPTIONS}) "
    "-> (Tensor dq, Tensor dk, Tensor dv)",
    tags=torch.Tag.pt2_compliant_tag,
)
library.define(
    "bwd_varlen(Tensor grad_out, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, "
    "Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k, *, "
    f"{_OPTIONS}) -> (Tensor dq, Tensor dk, Tensor dv)",
    tags=torch.Tag.pt2_compliant_tag,
)


def refuse_what_has_no_gradients(q: Tensor, cu_seqlens_q: Tensor | None, softcap: float) -> None:
    """Raises RuntimeError for a forward pass that can run, but whose backward pass could not."""
    if q.device.type != "cuda":
        return
    if softcap:
        raise RuntimeError(
            f"pyflash: softcap = {softcap:g} has no gradients on a GPU: expected 0, or tensors "
            "that do not require gradients"
        )
    heads = q.shape[-2]
    if isinstance(heads, int) and heads > _MAX_GRID:
        raise RuntimeError(
            f"pyflash: q has heads {heads}: expected at most {_MAX_GRID} where gradients are "
            "required"
        )
    sequences = cu_seqlens_q.shape[0] - 1 if cu_seqlens_q is not None else 0
    if isinstance(sequences, int) and sequences > _MAX_GRID:
        raise RuntimeError(
            f"pyflash: cu_seqlens_q has {sequences} sequences: expected at most {_MAX_GRID} where "
            "gradients are required, make several calls"
        )


def _new_gradients(q: Tensor, k: Tensor, v: Tensor) -> Gradients:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _zeros(q: Tensor, k: Tensor, v: Tensor) -> Gradients:
    return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)


def _fake(grad_out: Tensor, out: Tensor, lse: Tensor, *inputs: Any, **options: Any) -> Gradients:
    return _new_gradients(*inputs[:3])


# On a GPU.


def _on_cuda(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    **options: Any,
) -> Gradients:
    batch, seqlen_q = q.shape[:2]
    seqlen_k = k.shape[1]
    if q.numel() == 0 or k.numel() == 0:
        return _zeros(q, k, v)
    if batch > _MAX_GRID:
        gradients = _new_gradients(q, k, v)
        for i in range(0, batch, _MAX_GRID):
            part = slice(i, i + _MAX_GRID)
            parts = _on_cuda(*(x[part] for x in (grad_out, out, lse, q, k, v)), **options)
            for whole, values in zip(gradients, parts, strict=True):
                whole[part] = values
        return gradients
    left, right = _windows(seqlen_q, seqlen_k, **options)
    if seqlen_q > seqlen_k + 1 and (right >= seqlen_k or (left >= 0 and right < 0)):
        # PyTorch takes any right window of seqlen_k or more, and none beside a left one, for one
        # of seqlen_k, which cuts something here. For packed sequences it goes by max_seqlen_k.
        packed = [x.flatten(0, 1) for x in (q, k, v)]
        cu_seqlens = [
            torch.arange(batch + 1, dtype=torch.int32, device=q.device) * n
            for n in (seqlen_q, seqlen_k)
        ]
        parts = _varlen_on_cuda(
            grad_out.flatten(0, 1),
            out.flatten(0, 1),
            lse.transpose(0, 1).flatten(1, 2),
            *packed,
            *cu_seqlens,
            seqlen_q,
            seqlen_k,
            **options,
        )
        gradients = _new_gradients(q, k, v)
        for whole, values in zip(gradients, parts, strict=True):
            whole.copy_(values.view(whole.shape))
        return gradients
    return _flash_backward(
        grad_out, out, lse, (q, k, v), (None, None, seqlen_q, seqlen_k), (left, right), options
    )


def _varlen_on_cuda(
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
) -> Gradients:
    if q.numel() == 0 or k.numel() == 0 or max_seqlen_q == 0 or max_seqlen_k == 0:
        return _zeros(q, k, v)
    windows = _windows(max_seqlen_q, max_seqlen_k, **options)
    if windows not in ((-1, -1), (-1, 0)):
        max_seqlen_k = max(max_seqlen_q, max_seqlen_k)  # see _on_cuda; else it sizes the grid only
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
) -> Gradients:
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


# On the CPU.


def _on_cpu(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
) -> Gradients:
    batch, seqlen_q, heads, d_head = q.shape
    seqlen_k, heads_kv = k.shape[1:3]
    if q.numel() == 0 or k.numel() == 0:
        return _zeros(q, k, v)
    scale = 1 / math.sqrt(d_head) if softmax_scale is None else softmax_scale
    windows = (window_left, 0 if causal else window_right)
    group = heads // heads_kv
    n_batches = max(1, _MAX_SCORES // (heads * seqlen_q * seqlen_k))
    n_rows = max(1, _MAX_SCORES // (heads * seqlen_k))
    dq, dk, dv = _new_gradients(q, k, v)

    def grouped(x: Tensor) -> Tensor:  # (batch, heads_kv, group, seqlen_q, d_head)
        return x.unflatten(2, (heads_kv, group)).permute(0, 2, 3, 1, 4)

    # P = exp(S - lse) = 0 in rows with nothing to attend.
    lse = lse.nan_to_num(nan=math.nan, neginf=math.inf).unflatten(1, (heads_kv, group))
    for b in range(0, batch, n_batches):
        part = slice(b, b + n_batches)
        keys, values = (x[part].transpose(1, 2).float() for x in (k, v))
        d_keys, d_values = torch.zeros_like(keys), torch.zeros_like(values)
        for i in range(0, seqlen_q, n_rows):
            rows = slice(i, i + n_rows)
            queries, outs, d_outs = (
                grouped(x[part, rows]).float().flatten(2, 3) for x in (q, out, grad_out)
            )
            scores = (queries @ keys.mT) * scale
            if softcap:
                tanh = torch.tanh(scores / softcap)
                scores = softcap * tanh
            p = torch.exp(scores - lse[part, :, :, rows].flatten(2, 3)[..., None])
            keep = attended(torch.arange(seqlen_q)[rows], seqlen_q, seqlen_k, *windows)
            p = (p.unflatten(2, (group, -1)).masked_fill_(~keep, 0)).flatten(2, 3)
            d_scores = p * (d_outs @ values.mT - (d_outs * outs).sum(-1, keepdim=True))
            if softcap:
                d_scores *= 1 - tanh * tanh
            d_scores *= scale
            grouped(dq[part, rows]).copy_((d_scores @ keys).unflatten(2, (group, -1)))
            d_keys += d_scores.mT @ queries
            d_values += p.mT @ d_outs
        dk[part] = d_keys.transpose(1, 2)
        dv[part] = d_values.transpose(1, 2)
    return dq, dk, dv


def _varlen_on_cpu(
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
) -> Gradients:
    gradients = _zeros(q, k, v)
    bounds = (cu_seqlens_q.tolist(), cu_seqlens_k.tolist())
    for b in range(len(bounds[0]) - 1):
        rows_q, rows_k = (slice(starts[b], starts[b + 1]) for starts in bounds)
        sequence = (grad_out[rows_q], out[rows_q], lse[:, rows_q], q[rows_q], k[rows_k], v[rows_k])
        parts = _on_cpu(*(x[None] for x in sequence), **options)
        for whole, rows, values in zip(gradients, (rows_q, rows_k, rows_k), parts, strict=True):
            whole[rows] = values[0]
    return gradients


for _name, _implementations in (
    ("bwd", {"CUDA": _on_cuda, "CPU": _on_cpu}),
    ("bwd_varlen", {"CUDA": _varlen_on_cuda, "CPU": _varlen_on_cpu}),
):
    for _key, _implementation in _implementations.items():
        library.impl(_name, _implementation, _key)
    torch.library.register_fake(f"pyflash::{_name}", _fake, lib=library)
