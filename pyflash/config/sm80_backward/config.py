"""The config of the SM80 backward family: `cp.async`, `ldmatrix` and the m16n8k16 mma, and sums of
dQ by atomics in global memory.

Its fields are described here once; the C++ struct is emitted from them. New fields go at the end,
each with a default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyflash.config.base import DType, KernelConfig
from pyflash.config.fields import number, tile

MMA_ROWS = 16  # of the m16n8k16 mma of SM80
QUERIES_DQ = 32  # of which a warp computes dQ
SLAB = 32  # columns of dQ that a warp computes at a time, or twice as many
ALIGNMENT = 1024  # bytes, of tiles in smem


@dataclass(frozen=True, slots=True)
class FlashBackwardKernelConfig(KernelConfig):
    """One backward kernel. A CTA owns B_c keys of a head of K and V, and works through the blocks
    of B_r queries that attend them. A warp has `warp_keys` of the keys; where there are more warps
    than that, those of the same keys share their queries, and the columns of dK and dV. Ordered
    lexicographically, field by field.

    A wrong type raises TypeError, a number below 1 ValueError. Any other value can be written down;
    whether it can be built and launched is what `violations` tells.
    """

    tag: ClassVar[str] = "sm80_bwd"

    dtype: DType = tile()
    d_head: int = tile()  # head dimension
    B_r: int = tile()  # queries of a block
    B_c: int = tile()  # keys that a CTA owns
    n_warps: int = tile(usual=8)  # per CTA
    stages: int = number("stages_{}", usual=2)  # blocks of Q, and of dO, in smem at a time
    warp_keys: int = number("warp_keys_{}", default=MMA_ROWS)  # 32: less of Q and dO is read

    @property
    def n_threads(self) -> int:
        """Per CTA."""
        return 32 * self.n_warps

    @property
    def companions(self) -> int:
        """Warps that have the same keys, rounded up."""
        return -(-self.n_warps * self.warp_keys // self.B_c)

    @property
    def columns_dQ(self) -> int:
        """Columns of dQ that a warp computes of its 32 queries, in whole slabs; where these do not
        deal out evenly, the last warps have fewer, or none."""
        return -(-self.d_head * self.B_r // (QUERIES_DQ * self.n_warps * SLAB)) * SLAB

    @property
    def smem_bytes(self) -> int:
        """Per CTA: the tiles of K and V, which dK and dV take over, `stages` blocks of Q and of dO
        with two numbers for each query, dS, and P where several warps have the same keys. With
        three stages there are two of dS and P, so that warps wait for each other once a block."""
        tiles = 2 * (self.B_c + self.stages * self.B_r) * self.d_head * 2
        places = 2 if self.stages == 3 else 1
        of_scores = places * self.B_c * self.B_r * 2
        of_P = of_scores if self.companions > 1 else 16  # an element or two, aligned
        numbers = 2 * self.stages * self.B_r * 4
        return -(-(tiles + of_scores + of_P + numbers) // ALIGNMENT) * ALIGNMENT
