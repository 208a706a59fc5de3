"""From whole sequences to the rows of a rank, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from pyflash.distributed.attention import seqlens_of
from pyflash.distributed.exchange import clear_errors, process_group
from pyflash.distributed.layout import LAYOUTS, local_rows, n_chunks
from pyflash.distributed.schedule import index

Group = dist.ProcessGroup | DeviceMesh | None
CuSeqlens = Tensor | Sequence[int] | None


def positions(
    seqlen: int | None = None,
    *,
    group: Group = None,
    layout: str = "zigzag",
    cu_seqlens: CuSeqlens = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """The rows that this rank holds of a sequence of `seqlen` rows, or of the packed sequences of
    `cu_seqlens`: int64, in the rank's order. For rotary embeddings and labels.

    Raises ValueError for a sequence that the layout does not cut into equal chunks; packed ones may
    have any length.
    """
    group = process_group(group)
    seqlens = _seqlens(seqlen, cu_seqlens, layout, dist.get_world_size(group))
    rank, n_ranks = dist.get_rank(group), dist.get_world_size(group)
    return index(local_rows(seqlens, rank, n_ranks, layout), torch.device(device))


def shard(
    x: Tensor,
    *,
    dim: int = 1,
    group: Group = None,
    layout: str = "zigzag",
    cu_seqlens: CuSeqlens = None,
) -> Tensor:
    """This rank's rows of a tensor that holds the whole sequence in `dim`; packed sequences with
    `cu_seqlens` in theirs. Nothing is sent. Has gradients: zero for the rows of other ranks.

    Raises ValueError as `positions`.
    """
    rows = positions(
        x.shape[dim], group=group, layout=layout, cu_seqlens=cu_seqlens, device=x.device
    )
    return x.index_select(dim, rows)


def unshard(
    x: Tensor,
    *,
    dim: int = 1,
    group: Group = None,
    layout: str = "zigzag",
    cu_seqlens: CuSeqlens = None,
) -> Tensor:
    """The inverse of `shard`, on every rank: gathers the rows of all. Has no gradients."""
    group = process_group(group)
    rank, n_ranks = dist.get_rank(group), dist.get_world_size(group)
    seqlens = _seqlens(x.shape[dim] * n_ranks, cu_seqlens, layout, n_ranks)
    ranges = [local_rows(seqlens, r, n_ranks, layout) for r in range(n_ranks)]
    counts = [sum(map(len, of_rank)) for of_rank in ranges]
    if x.shape[dim] != counts[rank]:
        raise ValueError(
            f"pyflash: x has {x.shape[dim]} rows on rank {rank}: expected {counts[rank]} for these "
            f"cu_seqlens and layout = '{layout}'"
        )
    rows = x.detach().movedim(dim, 0)
    # Ranks hold different numbers of rows of packed sequences: as many are gathered of each.
    padded = rows.new_zeros((max(counts), *rows.shape[1:]))
    padded[: len(rows)] = rows
    gathered = [torch.empty_like(padded) for _ in range(n_ranks)]
    with clear_errors(group, "gather rows"):
        dist.all_gather(gathered, padded, group=group)
    order = index([rows for of_rank in ranges for rows in of_rank], x.device)
    rows = torch.cat([part[:count] for part, count in zip(gathered, counts, strict=True)])
    return rows.index_select(0, order.argsort()).movedim(0, dim).contiguous()


def _seqlens(
    seqlen: int | None, cu_seqlens: CuSeqlens, layout: str, n_ranks: int
) -> tuple[int, ...]:
    if layout not in LAYOUTS:
        raise ValueError(f"pyflash: layout = '{layout}': expected {' or '.join(LAYOUTS)}")
    if cu_seqlens is not None:
        return seqlens_of(cu_seqlens)
    n = n_chunks(n_ranks, layout)
    if seqlen is None or seqlen % n:
        raise ValueError(
            f"pyflash: the sequence has {seqlen} rows: expected a multiple of {n}, the chunks of "
            f"layout = '{layout}' on {n_ranks} ranks; pad it, or pass cu_seqlens"
        )
    return (seqlen,)
