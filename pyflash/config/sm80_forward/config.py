"""The config of the SM80 forward family: `cp.async`, `ldmatrix` and the m16n8k16 mma.

Its fields are described here once; the C++ struct is emitted from them. New fields go at the end,
each with a default.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyflash.config.base import DType, KernelConfig
from pyflash.config.fields import flag, number, tile

_LOADS = "load_{Q}_{K}_{V}_tiles"
LOAD_COUNTS = ("Q_mma_load_K_tiles", "K_mma_load_K_tiles", "V_mma_load_K_tiles")


@dataclass(frozen=True, slots=True)
class FlashForwardKernelConfig(KernelConfig):
    """One forward kernel. Ordered lexicographically, field by field.

    A wrong type raises TypeError, a size below 1 or a negative load count ValueError. Any other
    value can be written down; whether it can be built and launched is what `violations` tells.
    """

    dtype: DType = tile()
    d_head: int = tile()  # head dimension
    B_r: int = tile()  # Q rows per CTA
    B_c: int = tile()  # K/V rows per block
    n_warps: int = tile(usual=4)  # per CTA, each owns B_r / n_warps rows
    async_copy: bool = flag("async")  # cp.async, or 16-byte loads through registers
    eager_load_blocks: bool = flag("eager")  # V[j] loads behind QK^T, K[j+1] behind softmax and PV
    swizzled: bool = flag("swizzled")  # smem layouts through a Swizzle<B,M,S> atom, or row-major
    # Fragments of 8 columns along the GEMM's K dimension (d_head for Q and K, B_c for V) loaded per
    # stage, smem to registers. 0: the whole block before the GEMM; all of Q once, and kept.
    Q_mma_load_K_tiles: int = number(_LOADS, least=0)
    K_mma_load_K_tiles: int = number(_LOADS, least=0)
    V_mma_load_K_tiles: int = number(_LOADS, least=0)
    mma_double_buffer_loads: bool = flag("buffer")  # the next stage's ldmatrix before mma
    optimized_softmax: bool = flag("opt_softmax")  # exp2 with a folded scale; first block peeled
    kv_stages: int = number("stages_{}", default=1)  # blocks of K, and of V, in smem at a time
    # O is rescaled where scores exceed m by more than 2^14 (fp16) or 2^24 (bf16) only.
    rescale_threshold: bool = flag("rescale_threshold", default=False)

    @property
    def has_own_rows(self) -> bool:
        """Whether the bits of a row depend on no other row of its tile."""
        return not self.rescale_threshold

    @property
    def n_threads(self) -> int:
        """Per CTA."""
        return 32 * self.n_warps

    @property
    def smem_bytes(self) -> int:
        """Per CTA: a block of Q and kv_stages blocks of K and of V; O reuses the space of Q."""
        return (self.B_r + 2 * self.kv_stages * self.B_c) * self.d_head * 2

    def canonical(self) -> FlashForwardKernelConfig:
        """The one config that stands for all that compile to the same kernel as this one.

        One unbuffered stage that covers the K dimension is the whole block before the GEMM (for K
        only with Q = 0: otherwise a stage of Q is loaded with it), and where every operand is
        loaded whole there is nothing to double-buffer. Legal exactly where `self` is legal.
        """
        config = self
        buffered = self.mma_double_buffer_loads
        if not buffered and config.V_mma_load_K_tiles * 8 == config.B_c:
            config = config.replace(V_mma_load_K_tiles=0)
        kept = not buffered and config.Q_mma_load_K_tiles == 0
        if kept and config.K_mma_load_K_tiles * 8 == config.d_head:
            config = config.replace(K_mma_load_K_tiles=0)
        if not any(getattr(config, name) for name in LOAD_COUNTS):
            config = config.replace(mma_double_buffer_loads=False)
        return config

    def should_autotune_config(self) -> bool:
        """Whether a tuning run over the space of the `tune` set tries this config.

        It leaves out the copy schedules and the unequal Q and K counts that `violations` refuses,
        and the tiles that Q's registers are known not to suit: all of Q kept at B_r = 128 (too many
        registers) or at B_c = 32 (too many for a third CTA per SM), Q reloaded for each block at
        B_r = B_c = 64.
        """
        Q = self.Q_mma_load_K_tiles
        if not self.async_copy and self.eager_load_blocks:
            return False
        if Q not in (0, self.K_mma_load_K_tiles):
            return False
        if self.B_r == 64:
            if self.n_warps == 8:
                return False
            if self.B_c == 32 and Q == 0:
                return False
            if self.B_c == 64 and Q != 0:
                return False
        return not (self.B_r == 128 and Q == 0)
