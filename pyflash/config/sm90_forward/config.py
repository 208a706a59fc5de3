"""The config of the SM90 forward family: warpgroup MMAs (WGMMA) fed by TMA, warps with roles.

Its fields are described here once; the C++ struct is emitted from them. New fields go at the end,
each with a default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pyflash.config.base import DType, KernelConfig
from pyflash.config.fields import flag, number, tile
from pyflash.config.sm90 import MOST_SMEM, PIPELINE_STAGE, WARPGROUP, whole_smem

if TYPE_CHECKING:
    from pyflash.config.op import KernelFeatures


@dataclass(frozen=True, slots=True)
class FlashForwardSm90Config(KernelConfig):
    """One forward kernel of a producer warpgroup and `n_consumers` consumer warpgroups. Ordered
    lexicographically, field by field.

    A wrong type raises TypeError, a number below 1 ValueError. Any other value can be written down;
    whether it can be built and launched is what `violations` tells.
    """

    tag: ClassVar[str] = "sm90"

    dtype: DType = tile()
    d_head: int = tile()  # head dimension
    B_r: int = tile()  # Q rows per CTA
    B_c: int = tile()  # K/V rows per block
    n_consumers: int = tile(usual=2)  # warpgroups that compute; each owns B_r / n_consumers rows
    stages: int = number("stages_{}", usual=2)  # blocks of K, and of V, in smem at a time
    overlap: bool = flag("overlap")  # QK^T of the next block runs during the softmax of this one
    pingpong: bool = flag("pingpong")  # consumer warpgroups take turns on the tensor cores
    # One CTA per SM takes tile after tile; the next tile's first QK^T overlaps this one's last PV.
    persistent: bool = flag("persistent")
    # O is rescaled where scores exceed m by more than 2^14 (fp16) or 2^24 (bf16) only.
    rescale_threshold: bool = flag("rescale_threshold")
    pack_gqa: bool = flag("pack_gqa")  # the query heads of a K/V head are rows of one Q tile
    # CTAs of one consumer warpgroup share an SM, three in place of two, with fewer registers each.
    three_ctas: bool = flag("three_ctas", default=False)
    # With rescale_threshold: whether m grows, each row decides by its own scores, and not the warp.
    rows_decide: bool = flag("rows_decide", default=False)

    @property
    def ctas_per_sm(self) -> int:
        """For which registers are shared out; shared memory may have room for fewer. Two would
        leave each thread 128, which a row of O takes alone at d_head 256."""
        if self.n_consumers > 1 or self.d_head >= 256:
            return 1
        return 3 if self.three_ctas else 2

    @property
    def n_threads(self) -> int:
        """Per CTA."""
        return WARPGROUP * (1 + self.n_consumers)

    @property
    def slab_columns(self) -> int:
        """Columns of a TMA box, and of a swizzled row in smem: 128 bytes, or 64."""
        return 64 if self.d_head % 64 == 0 else 32

    @property
    def smem_bytes(self) -> int:
        """Per CTA: a tile of Q, `stages` blocks of K and of V, a slab of O for each consumer
        warpgroup (a CTA with one tile has it in place of Q), and the mbarriers of a pipeline for K,
        one for V, and one of a single stage for each consumer warpgroup's rows of Q."""
        tiles = (self.B_r + 2 * self.stages * self.B_c) * self.d_head * 2
        if self.persistent:
            tiles += self.B_r * self.slab_columns * 2
        barriers = (self.n_consumers + 2 * self.stages) * PIPELINE_STAGE
        return whole_smem(tiles + barriers)

    def smem_bytes_with(self, features: KernelFeatures) -> int:
        """Where keys are split at fixed places, and a CTA may work through all splits of its tile:
        with O of its rows in fp32, but for what fits into the slabs of O, and a number for each
        thread that computes. Kernels without room for it leave the splits to several CTAs."""
        if not (getattr(features, "fixed_splits", False) and self.folds_splits):
            return self.smem_bytes
        return self.smem_bytes + self._fold_bytes

    @property
    def folds_splits(self) -> bool:
        """Whether a CTA may work through all splits at fixed keys of a tile."""
        fits = self.smem_bytes + self._fold_bytes <= MOST_SMEM
        return self.persistent and self.n_consumers >= 2 and self.has_own_rows and fits

    @property
    def has_own_rows(self) -> bool:
        """Whether the bits of a row depend on no other row of its tile."""
        return self.rows_decide or not self.rescale_threshold

    @property
    def _fold_bytes(self) -> int:
        of_row = 4 * self.d_head - 2 * self.slab_columns
        return self.B_r * of_row + self.n_consumers * WARPGROUP * 4
