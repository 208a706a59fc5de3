"""A pair of a query and a key, as references of variants see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pair:
    s: float  # the scaled score
    b: int
    h: int
    q: int
    k: int
    q_len: int
    k_len: int

    @property
    def position(self) -> int:
        """The key that the query is aligned with: the last query with the last key."""
        return self.q + self.k_len - self.q_len
