"""Which rows of a sequence a rank of the group holds.

"contiguous" cuts a sequence into n chunks, rank r holds chunk r. "zigzag" cuts it into 2n, rank r
holds chunks r and 2n - 1 - r, so that under a causal mask every rank has the same work. A rank
keeps its chunks in ascending order; of packed sequences it holds its chunks of each, sequence after
sequence. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LAYOUTS = ("zigzag", "contiguous")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows [start, start + size) of a sequence, which are rows [local_start, ...) of those that the
    rank holds of it."""

    start: int
    local_start: int
    size: int


def n_chunks(n_ranks: int, layout: str) -> int:
    """The number of chunks of a whole sequence."""
    return 2 * n_ranks if layout == "zigzag" else n_ranks


def chunks(seqlen: int, rank: int, n_ranks: int, layout: str) -> tuple[Chunk, ...]:
    """Those of a sequence that a rank holds. A length that does not divide gives chunks that differ
    by one row at most."""
    n = n_chunks(n_ranks, layout)
    held = (rank, n - 1 - rank) if layout == "zigzag" else (rank,)
    result, local_start = [], 0
    for chunk in held:
        start, stop = chunk * seqlen // n, (chunk + 1) * seqlen // n
        result.append(Chunk(start, local_start, stop - start))
        local_start += stop - start
    return tuple(result)


def local_seqlen(seqlen: int, rank: int, n_ranks: int, layout: str) -> int:
    return sum(chunk.size for chunk in chunks(seqlen, rank, n_ranks, layout))


def local_rows(seqlens: Sequence[int], rank: int, n_ranks: int, layout: str) -> list[range]:
    """The rows that a rank holds of packed sequences, in its order."""
    rows = []
    first = 0
    for seqlen in seqlens:
        for chunk in chunks(seqlen, rank, n_ranks, layout):
            rows.append(range(first + chunk.start, first + chunk.start + chunk.size))
        first += seqlen
    return rows
