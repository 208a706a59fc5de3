"""Padded sequences of which only some rows are used, as packed ones that lie between the others.

A padded batch is its rows one after the other. Each sequence of it is several packed ones: the rows
that are used attend each other, the others attend nothing, and no row attends the other keys. So
lengths stay on the device, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from pyflash.op.errors import check_device, dtype_name, require

_POSITIONAL_ARGUMENTS = 4


class Used(NamedTuple):
    """The rows of each sequence that are used: (batch,), integers. None: from the first, all."""

    begins: Tensor | None
    lengths: Tensor | None


class Ranges(NamedTuple):
    """A padded batch as packed sequences."""

    per_sequence: int  # packed sequences of a padded one
    cu_seqlens_q: Tensor  # (batch * per_sequence + 1), int32
    cu_seqlens_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int

    @property
    def packing(self) -> tuple[Tensor, Tensor, int, int]:
        """The arguments of `attention_varlen` behind q, k and v."""
        return self[-_POSITIONAL_ARGUMENTS:]

    def to(self, device: torch.device) -> Ranges:
        starts = (self.cu_seqlens_q.to(device), self.cu_seqlens_k.to(device))
        return self._replace(cu_seqlens_q=starts[0], cu_seqlens_k=starts[1])

    def options(self, options: Mapping[str, object]) -> dict[str, object]:
        """Options whose tensors have a row for each packed sequence."""
        return {
            name: x.repeat_interleave(self.per_sequence, 0)
            if isinstance(x, Tensor) and x.dim() == 2
            else x
            for name, x in options.items()
        }


def ranges_of(q: Tensor, k: Tensor, used_q: Used, used_k: Used) -> Ranges:
    """q is (batch, seqlen_q, ...), k is (batch, seqlen_k, ...). Rows that are not there count as
    the last ones that are."""
    first_q, begin_q, end_q = _bounds(q, used_q)
    first_k, begin_k, end_k = _bounds(k, used_k)
    next_k = first_k + k.shape[1]
    # Where each packed sequence begins, in q and in k. It ends where the next begins.
    begins = [
        (begin_q, begin_k),  # those that are used
        (end_q, end_k),  # keys behind them, of no query
        (end_q, next_k),  # queries behind them, of no key
    ]
    if used_q.begins is not None or used_k.begins is not None:
        begins = [(first_q, first_k), (begin_q, first_k), *begins]
    per_sequence = len(begins)
    return Ranges(
        per_sequence,
        _with_end([begin for begin, _ in begins], q.shape[0] * q.shape[1]),
        _with_end([begin for _, begin in begins], k.shape[0] * k.shape[1]),
        q.shape[1],
        k.shape[1],
    )


def ranges_of_keys(heads: int, seqlen_k: int, used_k: Used) -> Ranges:
    """`ranges_of` for one query of each sequence, all of which are used, where each head of a
    sequence's keys is one, of seqlen_k rows: with fewer sequences."""
    ends = used_k.begins + used_k.lengths
    n = len(ends) * heads
    # Keys before those that are used, of no query; those that are; keys behind them, of no query.
    places = [torch.zeros_like(ends), used_k.begins, ends]
    queries = [0, 0, 1]
    if bool((ends == seqlen_k).all()):
        places.pop(), queries.pop()
    first = torch.arange(n, dtype=torch.int32, device=ends.device)
    begins_k = (first * seqlen_k).view(len(ends), heads, 1) + torch.stack(places, 1)[:, None]
    begins_q = first[:, None] + first.new_tensor(queries)
    return Ranges(
        len(queries),
        torch.nn.functional.pad(begins_q.flatten(), (0, 1), value=n),
        torch.nn.functional.pad(begins_k.flatten(), (0, 1), value=n * seqlen_k),
        1,
        seqlen_k,
    )


def _bounds(x: Tensor, used: Used) -> tuple[Tensor, Tensor, Tensor]:
    """The first row of each sequence, of its used ones, and the end of these."""
    batch, seqlen = x.shape[:2]
    first = torch.arange(batch, dtype=torch.int64, device=x.device) * seqlen
    begin = first if used.begins is None else first + used.begins.clamp(0, seqlen)
    if used.lengths is None:
        return first, begin, first + seqlen
    return first, begin, torch.minimum(begin + used.lengths.clamp(0, seqlen), first + seqlen)


def _with_end(begins: list[Tensor], end: int) -> Tensor:
    starts = torch.stack(begins, 1).flatten()
    return torch.nn.functional.pad(starts, (0, 1), value=end).to(torch.int32)


def check_lengths(q: Tensor, k: Tensor, v: Tensor, **lengths: Tensor | None) -> None:
    """Refuses lengths of other shapes; on the CPU, values that no length has, unless torch.compile
    traces."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        require(
            x.dim() == 4,
            f"{name} has shape {tuple(x.shape)}: expected (batch, seqlen, heads, d_head)",
        )
    require(k.shape[0] == q.shape[0], f"k has batch {k.shape[0]}: expected {q.shape[0]}, as q")
    for name, x in lengths.items():  # seqlens_q, seqlens_k
        if x is None:
            continue
        padded = q if name.endswith("q") else k
        check_device(q, **{name: x})
        require(x.dtype == torch.int32, f"{name} is {dtype_name(x.dtype)}: expected int32")
        require(
            x.dim() == 1 and x.shape[0] == q.shape[0],
            f"{name} has shape {tuple(x.shape)}: expected ({q.shape[0]},), a length for each "
            "sequence of q",
        )
        if type(x) is Tensor and x.device.type == "cpu" and not torch.compiler.is_compiling():
            seqlen = padded.shape[1]
            for b, length in enumerate(x.tolist()):
                require(
                    0 <= length <= seqlen,
                    f"{name}[{b}] = {length}: expected a number from 0 to {seqlen}, the rows "
                    f"of {name[-1]}",
                )
