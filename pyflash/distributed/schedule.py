"""The steps of a ring: which blocks of keys travel, and what a rank computes with each."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyflash.distributed import layout
from pyflash.distributed.pieces import Mask, Piece, pieces


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sequences of these lengths on so many ranks, and their mask."""

    seqlens_q: tuple[int, ...]
    seqlens_k: tuple[int, ...]
    mask: Mask
    n_ranks: int
    layout: str

    def rows_q(self, rank: int) -> int:
        return self._rows(self.seqlens_q, rank)

    def rows_k(self, rank: int) -> int:
        return self._rows(self.seqlens_k, rank)

    def _rows(self, seqlens: Sequence[int], rank: int) -> int:
        return sum(layout.local_seqlen(n, rank, self.n_ranks, self.layout) for n in seqlens)

    def pieces(self, q_rank: int, k_rank: int) -> list[tuple[Piece, ...]]:
        """What the queries of one rank attend of the keys of another, of each sequence."""
        return [
            pieces(
                layout.chunks(seqlen_q, q_rank, self.n_ranks, self.layout),
                layout.chunks(seqlen_k, k_rank, self.n_ranks, self.layout),
                self.mask.band(seqlen_q, seqlen_k),
            )
            for seqlen_q, seqlen_k in zip(self.seqlens_q, self.seqlens_k, strict=True)
        ]

    def shifts(self) -> tuple[int, ...]:
        """The steps of a ring: at shift s, rank r works on the keys of rank r - s. Shift 0, and
        those at which any rank has work: a block that nobody attends is not sent."""
        return _shifts(self)


@functools.lru_cache(maxsize=256)
def _shifts(geometry: Geometry) -> tuple[int, ...]:
    n = geometry.n_ranks
    if geometry.mask.window_left < 0:  # the last rows attend the keys of all ranks
        return tuple(range(n))

    def has_work(shift: int) -> bool:
        return any(any(geometry.pieces(rank, (rank - shift) % n)) for rank in range(n))

    return (0, *filter(has_work, range(1, n)))


# Rows of a tensor: consecutive ones, or an index tensor.
Rows = slice | Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of the op, and which local rows of the queries and of the keys it takes."""

    q_rows: Rows
    k_rows: Rows
    window_left: int
    window_right: int
    # cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k; () for padded tensors
    packing: tuple[Tensor, Tensor, int, int] | tuple[()]


@functools.lru_cache(maxsize=1024)
def calls(
    geometry: Geometry, q_rank: int, k_rank: int, packed: bool, device: torch.device
) -> tuple[Call, ...]:
    """What a rank computes with the block of keys of another."""
    found = geometry.pieces(q_rank, k_rank)
    if not packed:
        return tuple(
            Call(
                slice(piece.q_start, piece.q_stop),
                slice(piece.k_start, piece.k_stop),
                piece.window_left,
                piece.window_right,
                (),
            )
            for piece in found[0]
        )
    q_starts = _local_starts(geometry, geometry.seqlens_q, q_rank)
    k_starts = _local_starts(geometry, geometry.seqlens_k, k_rank)
    # Pieces of different sequences with the same windows share a call; those of one never do.
    groups: dict[tuple[int, int, int], list[tuple[range, range]]] = {}
    for of_sequence, q_start, k_start in zip(found, q_starts, k_starts, strict=True):
        for i, piece in enumerate(of_sequence):
            key = (i, piece.window_left, piece.window_right)
            q_rows = range(q_start + piece.q_start, q_start + piece.q_stop)
            k_rows = range(k_start + piece.k_start, k_start + piece.k_stop)
            groups.setdefault(key, []).append((q_rows, k_rows))
    return tuple(
        _packed_call(*zip(*ranges, strict=True), window_left, window_right, device)
        for (_, window_left, window_right), ranges in groups.items()
    )


def _packed_call(
    q_ranges: tuple[range, ...],
    k_ranges: tuple[range, ...],
    window_left: int,
    window_right: int,
    device: torch.device,
) -> Call:
    packing = (
        *(_cu_seqlens(ranges, device) for ranges in (q_ranges, k_ranges)),
        *(max(map(len, ranges)) for ranges in (q_ranges, k_ranges)),
    )
    q_rows, k_rows = (_rows(ranges, device) for ranges in (q_ranges, k_ranges))
    return Call(q_rows, k_rows, window_left, window_right, packing)


def _local_starts(geometry: Geometry, seqlens: Sequence[int], rank: int) -> list[int]:
    """The first local row of each sequence."""
    lengths = (layout.local_seqlen(n, rank, geometry.n_ranks, geometry.layout) for n in seqlens)
    return list(itertools.accumulate(lengths, initial=0))[:-1]


def _cu_seqlens(ranges: Sequence[range], device: torch.device) -> Tensor:
    starts = list(itertools.accumulate(map(len, ranges), initial=0))
    return torch.tensor(starts, dtype=torch.int32, device=device)


def _rows(ranges: Sequence[range], device: torch.device) -> Rows:
    if all(a.stop == b.start for a, b in itertools.pairwise(ranges)):
        return slice(ranges[0].start, ranges[-1].stop)
    return index(ranges, device)


def index(ranges: Sequence[range], device: torch.device) -> Tensor:
    """All numbers of the ranges, int64."""
    numbers = [torch.arange(rows.start, rows.stop) for rows in ranges]
    return torch.cat([torch.arange(0), *numbers]).to(device)
