"""Ring attention: blocks of keys and values travel around the group; each rank computes with the
one that it has while the next is on its way.

Forward: at each step the op, for what this rank's queries attend of the block; its (out, lse) is
merged into the result so far. Backward: the same ring. With lse and out of all keys,
P = exp(S - lse) of a block needs no other block, so dQ adds up here, and dK and dV travel with the
block that they belong to, one step behind it, until the last hop takes them home. All sums are in
fp32 and in the order of the ring: the same every time.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pyflash.distributed.exchange import Ring
from pyflash.distributed.merge import (
    LSE_ROW_DIM,
    ROW_DIM,
    Merged,
    add,
    take,
    with_logits,
)
from pyflash.distributed.schedule import Call, Geometry, calls
from pyflash.op import backward
from pyflash.op.on_demand import ensure_built
from pyflash.op.options import TENSORS, Scope, backward_options, of_scope

EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Attention:
    """A call of attention over a group, without its tensors."""

    group: dist.ProcessGroup
    geometry: Geometry
    packed: bool
    options: dict[str, Any]  # numbers that the op takes as they are

    @classmethod
    def of(
        cls,
        group: dist.ProcessGroup,
        geometry: Geometry,
        packed: bool,
        options: Mapping[str, Any],
    ) -> Attention:
        """Windows are in the geometry."""
        taken = of_scope(options, Scope.SCORE, Scope.POSITION)
        return cls(group, geometry, packed, {n: x for n, x in taken.items() if n not in TENSORS})

    def forward_op(
        self, call: Call, q: Tensor, k: Tensor, v: Tensor, tensors: Mapping[str, Tensor] = EMPTY
    ) -> tuple[Tensor, Tensor]:
        """tensors: of the options that the op takes."""
        op = torch.ops.pyflash.fwd_varlen if self.packed else torch.ops.pyflash.fwd
        arguments = {**_windows(call), **self.options, **tensors}
        ensure_built(arguments, q, k, call.packing, compile=False)  # where PYFLASH_JIT asks for it
        return op(q, k, v, *call.packing, **arguments)

    def backward_op(
        self,
        call: Call,
        grad_out: Tensor,
        out: Tensor,
        lse: Tensor,
        *qkv: Tensor,
        tensors: Mapping[str, Tensor] = EMPTY,
    ) -> tuple[Tensor, Tensor, Tensor]:
        op = torch.ops.pyflash.bwd_varlen if self.packed else torch.ops.pyflash.bwd
        inputs = (*qkv, *call.packing)
        arguments = backward.arguments_of((grad_out, out, lse, None), inputs, tensors)
        return op(*arguments, **_windows(call), **backward_options(self.options))


def _windows(call: Call) -> dict[str, int]:
    return {"window_left": call.window_left, "window_right": call.window_right}


class RingAttention(torch.autograd.Function):
    """(out, lse) of this rank's queries."""

    @staticmethod
    def forward(
        ctx: Any, attention: Attention, q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        merged = Merged(q)
        ring = _ring_of(attention, (k, v))
        for shift, block in ring.travel((k.contiguous(), v.contiguous()), _shifts(attention)):
            for call in _calls(attention, shift, q.device):
                k_rows, v_rows = (take(x, call.k_rows) for x in block)
                part = attention.forward_op(call, take(q, call.q_rows), k_rows, v_rows)
                merged.add(call.q_rows, *part)
        named = dict(zip(TENSORS, tensors, strict=True))
        out, lse = with_logits(merged.out, merged.lse, named)
        out = out.to(q.dtype)
        ctx.attention = attention
        ctx.save_for_backward(out, lse, q, k, v, *tensors)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if grad_out is None:
            return (None,) * (4 + len(TENSORS))
        attention: Attention = ctx.attention
        out, lse, q, k, v, *tensors = ctx.saved_tensors
        dq, dk, dv = _gradients(attention, grad_out, out, lse, (q, k, v))
        needed = ctx.needs_input_grad[4:]
        d_tensors = backward.of_tensors((grad_out, out, lse, None), tensors, needed)
        return None, dq, dk, dv, *d_tensors


def _gradients(
    attention: Attention,
    grad_out: Tensor,
    out: Tensor,
    lse: Tensor,
    qkv: tuple[Tensor, Tensor, Tensor],
) -> tuple[Tensor, ...]:
    q, k, v = qkv
    n_ranks = attention.geometry.n_ranks
    shifts = _shifts(attention)
    dq = torch.zeros_like(q, dtype=torch.float32)
    # dk and dv of the block at hand, at first of this rank's own.
    d_block = tuple(torch.zeros_like(x, dtype=torch.float32).contiguous() for x in (k, v))
    d_ring = _ring_of(attention, d_block)
    transfer = None
    travel = _ring_of(attention, (k, v)).travel((k.contiguous(), v.contiguous()), shifts)
    for (shift, block), following in itertools.zip_longest(travel, shifts[1:], fillvalue=n_ranks):
        parts = []
        for call in _calls(attention, shift, q.device):
            q_rows = (take(grad_out, call.q_rows), take(out, call.q_rows))
            lse_rows = take(lse, call.q_rows, LSE_ROW_DIM)
            k_rows, v_rows = (take(x, call.k_rows) for x in block)
            dq_part, *d_block_part = attention.backward_op(
                call, *q_rows, lse_rows, take(q, call.q_rows), k_rows, v_rows
            )
            add(dq, call.q_rows, dq_part)
            parts.append((call.k_rows, d_block_part))
        if transfer is not None:
            d_block = transfer.wait()
        for k_rows, d_block_part in parts:
            for total, part in zip(d_block, d_block_part, strict=True):
                add(total, k_rows, part)
        hop = following - shift
        if hop < n_ranks:
            transfer = d_ring.send(d_block, shift, hop)
    if transfer is not None:
        d_block = transfer.wait()
    return tuple(x.to(q.dtype) for x in (dq, *d_block))


def _ring_of(attention: Attention, block: tuple[Tensor, ...]) -> Ring:
    geometry = attention.geometry
    rows = [geometry.rows_k(rank) for rank in range(geometry.n_ranks)]
    return Ring(attention.group, block, rows, block[0].dim() + ROW_DIM)


def _shifts(attention: Attention) -> tuple[int, ...]:
    return attention.geometry.shifts()


def _calls(attention: Attention, shift: int, device: torch.device) -> tuple[Call, ...]:
    rank, n_ranks = dist.get_rank(attention.group), attention.geometry.n_ranks
    return calls(attention.geometry, rank, (rank - shift) % n_ranks, attention.packed, device)
