"""Attention by all-to-all: a rank gives its rows of all heads for all rows of its heads, attends
with the op as one GPU would, and gives the rows back.

K/V heads are shared out as the query heads are. Where there are fewer than ranks, each is sent to
all ranks whose query heads attend it, and their gradients are summed, in fp32 and in order.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pyflash.distributed.exchange import clear_errors
from pyflash.distributed.layout import local_rows
from pyflash.distributed.merge import with_logits
from pyflash.distributed.ring import Attention
from pyflash.distributed.schedule import Call, index
from pyflash.op import backward
from pyflash.op.options import TENSORS, Scope, of_scope


def why_not(heads: int, heads_kv: int, n_ranks: int) -> str | None:
    """Why heads cannot be shared out, in words."""
    if heads % n_ranks:
        return f"q has {heads} heads: expected a multiple of the {n_ranks} ranks for all_to_all"
    if heads_kv % n_ranks and n_ranks % max(1, heads_kv):
        return (
            f"k has {heads_kv} heads: expected a multiple or a divisor of the {n_ranks} ranks for "
            "all_to_all"
        )
    return None


class HeadParallelAttention(torch.autograd.Function):
    """(out, lse) of this rank's queries."""

    @staticmethod
    def forward(
        ctx: Any, attention: Attention, q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        mine = _heads_of_rank(attention, q.shape[-2])
        q_heads = _to_heads(attention, q, attention.geometry.seqlens_q)
        seqlens_k = attention.geometry.seqlens_k
        k_heads, v_heads = (
            _to_heads(attention, _repeated(x, attention.geometry.n_ranks), seqlens_k)
            for x in (k, v)
        )
        of_mine = _of_heads(tensors, mine)
        call, taken = _whole(attention, q.device), of_scope(of_mine, Scope.POSITION)
        part = attention.forward_op(call, q_heads, k_heads, v_heads, taken)
        out_heads, lse_heads = with_logits(*part, of_mine)
        out = _to_rows(attention, out_heads, attention.geometry.seqlens_q)
        # (..., heads, rows) as one column of each head
        lse_column = lse_heads.mT.unsqueeze(-1).contiguous()
        lse = _to_rows(attention, lse_column, attention.geometry.seqlens_q).squeeze(-1).mT
        ctx.attention, ctx.heads, ctx.heads_kv = attention, mine, k.shape[-2]
        ctx.save_for_backward(out_heads, lse_heads, q_heads, k_heads, v_heads, *tensors)
        lse = lse.contiguous()
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if grad_out is None:
            return (None,) * (4 + len(TENSORS))
        attention: Attention = ctx.attention
        geometry = attention.geometry
        out, lse, q, k, v, *tensors = ctx.saved_tensors
        of_mine = _of_heads(tensors, ctx.heads)
        grad_out = _to_heads(attention, grad_out, geometry.seqlens_q)
        call = _whole(attention, q.device)
        taken = of_scope(of_mine, Scope.POSITION)
        dq, dk, dv = attention.backward_op(call, grad_out, out, lse, q, k, v, tensors=taken)
        dq = _to_rows(attention, dq, geometry.seqlens_q)
        dk, dv = (
            _sum_repeated(_to_rows(attention, x, geometry.seqlens_k), ctx.heads_kv)
            for x in (dk, dv)
        )
        parts = backward.of_tensors(
            (grad_out, out, lse, None), tuple(of_mine.values()), ctx.needs_input_grad[4:]
        )
        d_tensors = (
            None if part is None else _among_all_heads(part, x, ctx.heads)
            for part, x in zip(parts, tensors, strict=True)
        )
        return None, dq, dk, dv, *d_tensors


def _of_heads(tensors: Sequence[Tensor | None], heads: slice) -> dict[str, Tensor | None]:
    """By name, the numbers of these heads, which are the last axis."""
    named = zip(TENSORS, tensors, strict=True)
    return {name: None if x is None else x[..., heads] for name, x in named}


def _among_all_heads(part: Tensor, x: Tensor, heads: slice) -> Tensor:
    """The gradient of x, whose other parts are on other ranks."""
    gradient = torch.zeros_like(x)
    gradient[..., heads] = part
    return gradient


def _heads_of_rank(attention: Attention, heads: int) -> slice:
    each, rank = heads // attention.geometry.n_ranks, dist.get_rank(attention.group)
    return slice(rank * each, (rank + 1) * each)


def _repeated(x: Tensor, n_ranks: int) -> Tensor:
    """K/V heads, each as often as ranks attend it."""
    heads_kv = x.shape[-2]
    return x if heads_kv % n_ranks == 0 else x.repeat_interleave(n_ranks // heads_kv, dim=-2)


def _sum_repeated(x: Tensor, heads_kv: int) -> Tensor:
    if x.shape[-2] == heads_kv:
        return x
    return x.unflatten(-2, (heads_kv, -1)).sum(-2, dtype=torch.float32).to(x.dtype)


def _whole(attention: Attention, device: torch.device) -> Call:
    """The call of the op over all rows."""
    geometry = attention.geometry
    packing: tuple[Any, ...] = ()
    if attention.packed:
        lengths = (geometry.seqlens_q, geometry.seqlens_k)
        packing = (
            *(_cu_seqlens(seqlens, device) for seqlens in lengths),
            *(max(seqlens, default=0) for seqlens in lengths),
        )
    everything = slice(None)
    mask = geometry.mask
    return Call(everything, everything, mask.window_left, mask.window_right, packing)


@functools.lru_cache(maxsize=256)
def _cu_seqlens(seqlens: tuple[int, ...], device: torch.device) -> Tensor:
    lengths = torch.tensor([0, *seqlens])
    return lengths.cumsum(0, dtype=torch.int32).to(device)


def _to_heads(attention: Attention, x: Tensor, seqlens: tuple[int, ...]) -> Tensor:
    """From this rank's rows, (..., local rows, heads, d), to all rows of its heads,
    (..., rows, heads / n_ranks, d), in the order of the sequences."""
    n_ranks = attention.geometry.n_ranks
    rows = _rows_first(x, attention.packed)  # (local rows, batch, heads, d)
    by_rank = rows.unflatten(2, (n_ranks, -1)).movedim(2, 0).contiguous()
    counts = _row_counts(attention, seqlens)
    received = _all_to_all(attention.group, by_rank.flatten(0, 1), [len(rows)] * n_ranks, counts)
    _, inverse = _order(seqlens, n_ranks, attention.geometry.layout, x.device)
    return _rows_last(received.index_select(0, inverse), attention.packed)


def _to_rows(attention: Attention, x: Tensor, seqlens: tuple[int, ...]) -> Tensor:
    """The inverse of `_to_heads`. Contiguous."""
    n_ranks, rank = attention.geometry.n_ranks, dist.get_rank(attention.group)
    order, _ = _order(seqlens, n_ranks, attention.geometry.layout, x.device)
    rows = _rows_first(x, attention.packed).index_select(0, order)
    counts = _row_counts(attention, seqlens)
    received = _all_to_all(attention.group, rows, counts, [counts[rank]] * n_ranks)
    by_rank = received.unflatten(0, (n_ranks, -1))  # (n_ranks, local rows, batch, heads / n, d)
    return _rows_last(by_rank.movedim(0, 2).flatten(2, 3), attention.packed).contiguous()


def _all_to_all(
    group: dist.ProcessGroup, x: Tensor, send_counts: list[int], receive_counts: list[int]
) -> Tensor:
    """Rows [sum of send_counts before r, ...) of x go to rank r."""
    received = x.new_empty((sum(receive_counts), *x.shape[1:]))
    with clear_errors(group, "exchange heads"):
        dist.all_to_all_single(received, x, receive_counts, send_counts, group=group)
    return received


def _row_counts(attention: Attention, seqlens: tuple[int, ...]) -> list[int]:
    """How many rows each rank holds."""
    n_ranks, layout = attention.geometry.n_ranks, attention.geometry.layout
    return [sum(map(len, local_rows(seqlens, r, n_ranks, layout))) for r in range(n_ranks)]


@functools.lru_cache(maxsize=64)
def _order(
    seqlens: tuple[int, ...], n_ranks: int, layout: str, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The rows of the sequences as the ranks hold them, rank after rank; and the inverse."""
    ranges = [rows for r in range(n_ranks) for rows in local_rows(seqlens, r, n_ranks, layout)]
    order = index(ranges, device)
    return order, order.argsort()


def _rows_first(x: Tensor, packed: bool) -> Tensor:
    """(rows, batch, heads, d)"""
    return x.unsqueeze(1) if packed else x.transpose(0, 1)


def _rows_last(x: Tensor, packed: bool) -> Tensor:
    """The inverse of `_rows_first`."""
    return x.squeeze(1) if packed else x.transpose(0, 1)
