"""Covers the attention of one rank's queries to another rank's keys by few calls of the op.

A mask is a band: query i attends key j if lo <= j - i <= hi. Between two chunks that band covers
everything, nothing, or a corner. A `Piece` is the smallest rectangle around what it covers, in
which its windows are again windows of the op, aligned with its last row and key. Pieces whose union
is a band in a rectangle are joined: under a causal mask a rank has one piece for every other rank.
Needs no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyflash.distributed.layout import Chunk

_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Mask:
    """Windows as the op takes them, of sequences of these lengths: bottom-right aligned."""

    window_left: int = -1
    window_right: int = -1

    def band(self, seqlen_q: int, seqlen_k: int) -> tuple[int, int]:
        """(lo, hi): query i attends the keys j with lo <= j - i <= hi."""
        left = self.window_left if self.window_left >= 0 else _NO_LIMIT
        right = self.window_right if self.window_right >= 0 else _NO_LIMIT
        return seqlen_k - seqlen_q - left, seqlen_k - seqlen_q + right


@dataclass(frozen=True, slots=True)
class Piece:
    """Queries [q_start, q_stop) and keys [k_start, k_stop), numbered as their ranks hold them, with
    lo <= j - i <= hi. Every query attends something, every key is attended."""

    q_start: int
    q_stop: int
    k_start: int
    k_stop: int
    lo: int  # no less than k_start - (q_stop - 1), where it masks nothing
    hi: int  # no more than k_stop - 1 - q_start, where it masks nothing

    @classmethod
    def around(
        cls, q_start: int, q_stop: int, k_start: int, k_stop: int, lo: int, hi: int
    ) -> Piece | None:
        """The piece that a band cuts from a rectangle; None if it cuts nothing from it."""
        q_start, q_stop = max(q_start, k_start - hi), min(q_stop, k_stop - lo)
        k_start, k_stop = max(k_start, q_start + lo), min(k_stop, q_stop + hi)
        if lo > hi or q_start >= q_stop or k_start >= k_stop:
            return None
        lo, hi = max(lo, k_start - q_stop + 1), min(hi, k_stop - 1 - q_start)
        return cls(q_start, q_stop, k_start, k_stop, lo, hi)

    @property
    def seqlen_q(self) -> int:
        return self.q_stop - self.q_start

    @property
    def seqlen_k(self) -> int:
        return self.k_stop - self.k_start

    @property
    def window_left(self) -> int:
        """As the op takes it."""
        masks = self.lo > self.k_start - (self.q_stop - 1)
        return self.k_stop - self.q_stop - self.lo if masks else -1

    @property
    def window_right(self) -> int:
        """As the op takes it."""
        masks = self.hi < self.k_stop - 1 - self.q_start
        return self.hi - (self.k_stop - self.q_stop) if masks else -1

    @property
    def pairs(self) -> int:
        """The number of pairs of a query and a key that it attends."""
        shift = self.q_start - self.k_start
        return self._pairs_up_to(self.hi + shift) - self._pairs_up_to(self.lo + shift - 1)

    def _pairs_up_to(self, hi: int) -> int:
        """With j - i <= hi, both counted from the piece's first. Row i has min(i + hi + 1,
        seqlen_k) of them, none where that is negative."""

        def below(n: int) -> int:  # sum of min(i, seqlen_k) for i < n
            ramp = max(0, min(n, self.seqlen_k))
            return ramp * (ramp - 1) // 2 + max(0, n - ramp) * self.seqlen_k

        return below(max(0, hi + 1 + self.seqlen_q)) - below(max(0, hi + 1))


def pieces(
    q_chunks: Sequence[Chunk], k_chunks: Sequence[Chunk], band: tuple[int, int]
) -> tuple[Piece, ...]:
    """What the queries of q_chunks attend of the keys of k_chunks, of one sequence."""
    found = []
    for q in q_chunks:
        for k in k_chunks:
            # From rows of the sequence to rows of the ranks.
            shift = (q.start - q.local_start) - (k.start - k.local_start)
            q_stop, k_stop = q.local_start + q.size, k.local_start + k.size
            lo, hi = band[0] + shift, band[1] + shift
            piece = Piece.around(q.local_start, q_stop, k.local_start, k_stop, lo, hi)
            if piece is not None:
                found.append(piece)
    return _join_all(found)


def _join_all(found: list[Piece]) -> tuple[Piece, ...]:
    joined: list[Piece] = []
    for piece in found:
        candidates = [*joined]
        for other in candidates:
            union = _join(piece, other)
            if union is not None:
                joined.remove(other)
                piece = union
        joined.append(piece)
    return tuple(joined) if len(joined) == len(found) else _join_all(joined)


def _join(a: Piece, b: Piece) -> Piece | None:
    """The piece that covers what both cover, if there is one. Both are disjoint parts of the band
    around them, so they are all of it if they have as many pairs."""
    union = Piece(
        min(a.q_start, b.q_start),
        max(a.q_stop, b.q_stop),
        min(a.k_start, b.k_start),
        max(a.k_stop, b.k_stop),
        min(a.lo, b.lo),
        max(a.hi, b.hi),
    )
    return union if union.pairs == a.pairs + b.pairs else None
