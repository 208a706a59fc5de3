"""Gradients on the CPU: the formula in float32.

P  = exp(S - lse)                        S: scores, scaled, capped and masked; lse: with the sink
dV = P^T dO
dS = P * (dO V^T - rowsum(dO * O) + dlse)
dQ = softmax_scale * dS K, dK = softmax_scale * dS^T Q
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyflash.op.options import AttentionOptions, softmax_scale_of
from pyflash.op.reference import attended_with, of_sequences, with_alibi

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Scores in memory at a time.
_MAX_SCORES = 1 << 22


def bwd(
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    grad_lse: Tensor | None = None,
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Tensor]:
    batch, seqlen_q, heads, d_head = q.shape
    seqlen_k, heads_kv = k.shape[1:3]
    if q.numel() == 0 or k.numel() == 0:
        return tuple(torch.zeros_like(x) for x in (q, k, v))
    scale, softcap = softmax_scale_of(options, d_head), options.get("softcap", 0.0)
    group = heads // heads_kv
    n_batches = max(1, _MAX_SCORES // (heads * seqlen_q * seqlen_k))
    n_rows = max(1, _MAX_SCORES // (heads * seqlen_k))
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))

    def grouped(x: Tensor) -> Tensor:  # (batch, heads_kv, group, seqlen_q, d_head)
        return x.unflatten(2, (heads_kv, group)).permute(0, 2, 3, 1, 4)

    # P = exp(S - lse) = 0 in rows with nothing to attend and no sink, and so has dS to be.
    d_lse = torch.zeros_like(lse) if grad_lse is None else grad_lse.masked_fill(lse == -math.inf, 0)
    lse = lse.nan_to_num(nan=math.nan, neginf=math.inf)
    lse, d_lse = (x.unflatten(1, (heads_kv, group)) for x in (lse, d_lse))
    for b in range(0, batch, n_batches):
        part = slice(b, b + n_batches)
        of_part = of_sequences(options, part)
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
            of_rows = torch.arange(seqlen_q)[rows]
            by_heads = scores.unflatten(2, (group, -1))
            scores = with_alibi(by_heads, of_part, of_rows, seqlen_q, seqlen_k).flatten(2, 3)
            lses, d_lses = (x[part, :, :, rows].flatten(2, 3)[..., None] for x in (lse, d_lse))
            p = torch.exp(scores - lses)
            keep = attended_with(options, of_rows, seqlen_q, seqlen_k)
            p = (p.unflatten(2, (group, -1)).masked_fill_(~keep, 0)).flatten(2, 3)
            delta = (d_outs * outs).sum(-1, keepdim=True) - d_lses
            d_scores = p * (d_outs @ values.mT - delta)
            if softcap:
                d_scores *= 1 - tanh * tanh
            d_scores *= scale
            grouped(dq[part, rows]).copy_((d_scores @ keys).unflatten(2, (group, -1)))
            d_keys += d_scores.mT @ queries
            d_values += p.mT @ d_outs
        dk[part] = d_keys.transpose(1, 2)
        dv[part] = d_values.transpose(1, 2)
    return dq, dk, dv


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
    *,
    grad_lse: Tensor | None = None,
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Tensor]:
    gradients = tuple(torch.zeros_like(x) for x in (q, k, v))
    bounds = (cu_seqlens_q.tolist(), cu_seqlens_k.tolist())
    for b in range(len(bounds[0]) - 1):
        rows_q, rows_k = (slice(starts[b], starts[b + 1]) for starts in bounds)
        sequence = (grad_out[rows_q], out[rows_q], lse[:, rows_q], q[rows_q], k[rows_k], v[rows_k])
        parts = bwd(
            *(x[None] for x in sequence),
            grad_lse=None if grad_lse is None else grad_lse[None, :, rows_q],
            **of_sequences(options, slice(b, b + 1)),
        )
        for whole, rows, values in zip(gradients, (rows_q, rows_k, rows_k), parts, strict=True):
            whole[rows] = values[0]
    return gradients
