"""Partial results of attention over parts of the keys, merged in fp32 as split-KV merges them:

lse = ln(sum_i exp(lse_i)),  O = sum_i exp(lse_i - lse) O_i

Tensors with rows in dimension -3, (..., rows, heads, d_head), lse in its last, (..., heads, rows):
padded and packed ones alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from pyflash.distributed.schedule import Rows
from pyflash.op.options import Scope, of_scope

ROW_DIM, LSE_ROW_DIM = -3, -1


def take(x: Tensor, rows: Rows, dim: int = ROW_DIM) -> Tensor:
    """These rows: a view of consecutive ones, a copy of others."""
    if isinstance(rows, slice):
        return x.narrow(dim, rows.start, rows.stop - rows.start)
    return x.index_select(dim, rows)


def add(total: Tensor, rows: Rows, part: Tensor) -> None:
    """Adds to these rows, each of which is there once."""
    if isinstance(rows, slice):
        take(total, rows).add_(part)
    else:
        total.index_add_(ROW_DIM, rows, part.to(total.dtype))


class Merged:
    """The partial results so far. At first, no key was attended: out = 0, lse = -inf."""

    def __init__(self, q: Tensor) -> None:
        self.out = q.new_zeros(q.shape, dtype=torch.float32)  # (..., rows, heads, d_head)
        heads_by_rows = (*q.shape[:-3], q.shape[-2], q.shape[-3])
        self.lse = q.new_full(heads_by_rows, -math.inf, dtype=torch.float32)

    def add(self, rows: Rows, out: Tensor, lse: Tensor) -> None:
        """Merges the result of further keys for these rows, each of which is there once."""
        old_out, old_lse = take(self.out, rows), take(self.lse, rows, LSE_ROW_DIM)
        # exp(lse - logaddexp(old_lse, lse)); NaN where both are -inf.
        weight = torch.sigmoid(lse - old_lse).nan_to_num_(nan=0.0)
        new_lse = torch.logaddexp(old_lse, lse)
        old_out.lerp_(out.float(), weight.mT.unsqueeze(-1))  # in self.out, if it is a view
        if isinstance(rows, slice):
            old_lse.copy_(new_lse)
        else:
            self.out.index_copy_(self.out.dim() + ROW_DIM, rows, old_out)
            self.lse.index_copy_(self.lse.dim() + LSE_ROW_DIM, rows, new_lse)


def with_logits(
    out: Tensor, lse: Tensor, options: Mapping[str, Tensor | None]
) -> tuple[Tensor, Tensor]:
    """(out, lse) after those options joined the softmax denominator that are a logit for each head,
    (heads,)."""
    for logits in of_scope(options, Scope.DENOMINATOR).values():
        column = logits.float().unsqueeze(-1)  # (heads, 1)
        weight = torch.sigmoid(lse - column).nan_to_num_(nan=0.0)
        out = (out * weight.mT.unsqueeze(-1)).to(out.dtype)
        lse = torch.logaddexp(lse, column)
    return out, lse
