"""The config of the SM90 backward family: warpgroup MMAs (WGMMA) fed by TMA, warps with roles, and
sums of dQ by reductions in global memory.

Its fields are described here once; the C++ struct is emitted from them. New fields go at the end,
each with a default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyflash.config.base import DType, KernelConfig
from pyflash.config.fields import flag, number, tile
from pyflash.config.sm90 import MMA_ROWS, PIPELINE_STAGE, WARPGROUP, whole_smem

SUMS_COUNT = 32  # bytes: three mbarriers and what the count said
ZEROS = 256 * 4  # bytes
SENDERS = 2  # warps that wait for turns to add dQ in deterministic kernels
SLAB = 64  # columns that lie together in smem, at most
NARROWEST = 16  # and at least
ALIGNMENT = 128  # bytes, of numbers


def slab_of(columns: int) -> int:
    """The widest slab of which so many columns are a multiple."""
    return next((slab for slab in (SLAB, 32) if columns % slab == 0), NARROWEST)


@dataclass(frozen=True, slots=True)
class FlashBackwardSm90Config(KernelConfig):
    """One backward kernel of a producer warpgroup and `n_consumers` consumer warpgroups. A CTA owns
    B_c keys of a head of K and V, and works through the blocks of queries that attend them. Each
    warpgroup has 64 keys, of its own or, where d_head is above 128 and B_c is 64, the same as the
    others: then each computes all scores, and dK and dV in a share of the columns. Where d_head is
    above 128 and B_c is 128, two CTAs own the same keys, compute all scores, and dQ, dK and dV in
    half of the columns. Ordered lexicographically, field by field.

    A wrong type raises TypeError, a number below 1 ValueError. Any other value can be written down;
    whether it can be built and launched is what `violations` tells.
    """

    tag: ClassVar[str] = "sm90_bwd"

    dtype: DType = tile()
    d_head: int = tile()  # head dimension
    B_r: int = tile()  # queries of a block
    B_c: int = tile()  # keys that a CTA owns
    n_consumers: int = tile(usual=2)  # warpgroups that compute
    stages: int = number("stages_{}", usual=2)  # blocks of Q, and of dO, in smem at a time
    # Scores of a block run beside dQ and dK of the one before; dK then reads dS from smem, unless
    # there are registers for it.
    overlap: bool = flag("overlap")
    # dQ is added to its sums from registers, not by TMA from smem.
    dQ_by_red: bool = flag("dQ_by_red")
    # P of a block is computed beside its dP, which starts at -delta, and dS from P in 16 bits; not
    # under softcap, nor for a variant that has slopes of its own.
    early_dP: bool = flag("early_dP")

    @property
    def n_threads(self) -> int:
        """Per CTA."""
        return WARPGROUP * (1 + self.n_consumers)

    @property
    def shares_keys(self) -> bool:
        """Whether all consumers have the same keys."""
        return self.d_head > 128 and self.B_c == MMA_ROWS

    @property
    def column_parts(self) -> int:
        """CTAs that own the same keys, with a part of the columns each."""
        return 2 if self.d_head > 128 and self.B_c > MMA_ROWS else 1

    @property
    def dS_stages(self) -> int:
        """Blocks of dS in smem."""
        return 1 if self.column_parts > 1 else 2

    @property
    def dO_stages(self) -> int:
        """Blocks of dO in smem: one where columns are in parts, since more have no room."""
        return 1 if self.column_parts > 1 else self.stages

    @property
    def dQ_columns(self) -> int:
        """Of 64 queries, that a warpgroup computes: 64, or where slabs of 64 do not go round, half
        of them all."""
        return SLAB if self.d_head.bit_count() == 1 else self.d_head // 2

    @property
    def dK_columns(self) -> int:
        """Of 64 keys, that a warpgroup computes, and as many of dV."""
        of_cta = self.d_head // self.column_parts
        return of_cta // self.n_consumers if self.shares_keys else of_cta

    @property
    def smem_bytes(self) -> int:
        """Per CTA: the tiles of K and V, `stages` blocks of Q and `dO_stages` of dO with a number
        for each query, of which columns of other CTAs are there once, `dS_stages` blocks of dS,
        64 x `dQ_columns` elements of dQ in fp32 of each consumer, or without them 64 rows of a slab
        of dK, which may lie where dS was, and the mbarriers of pipelines for K, V, Q and dO, of dS,
        of senders' turns to add dQ and of who counts what is added, and zeros."""
        n_blocks = self.stages + self.dO_stages
        own = self.d_head // self.column_parts
        tiles = 2 * self.B_c * self.d_head + self.B_r * (n_blocks * own + 2 * (self.d_head - own))
        of_dS = self.dS_stages * self.B_c * self.B_r * 2
        of_dQ = slab_of(self.dK_columns) * 2 if self.dQ_by_red else self.dQ_columns * 4
        of_dQ *= self.n_consumers * MMA_ROWS
        numbers = n_blocks * self.B_r * 4
        barriers = (2 + n_blocks + self.n_consumers * SENDERS) * PIPELINE_STAGE
        barriers += self.dS_stages * 8 + SUMS_COUNT + ZEROS
        if self.column_parts > 1:
            of_dQ = ALIGNMENT
            barriers += 2 * PIPELINE_STAGE + 8
        return whole_smem(2 * tiles + of_dS + of_dQ + numbers + barriers)
