"""What makes a config of the SM80 backward family legal: each rule is stated here and nowhere else.

The static_asserts of the kernels are the backstop.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyflash.config.arch import Arch
from pyflash.config.resources import refuse_over_register_file, tell_spills
from pyflash.config.rules import Rules
from pyflash.config.sm80_backward.config import (
    MMA_ROWS,
    QUERIES_DQ,
    SLAB,
    FlashBackwardKernelConfig,
)
from pyflash.config.sm80_backward.resources import register_demand, resources

COPY_COLUMNS = 8  # 16 bytes, one cp.async

# What the kernels are written and tested for.
SUPPORTED = {
    "d_head": (64, 96, 128, 192, 256),
    "B_r": (32, 64, 128),
    "B_c": (32, 64, 128),
    "n_warps": (4, 8),
    "stages": (1, 2, 3),
    "warp_keys": (16, 32),
}


RULES = Rules()


@RULES.rule
def keys_per_warp(c: FlashBackwardKernelConfig, arch: Arch) -> Iterator[str]:
    if c.B_c % c.warp_keys or c.warp_keys * c.n_warps % c.B_c or c.warp_keys % MMA_ROWS:
        yield (
            f"each of the n_warps = {c.n_warps} warps has warp_keys = {c.warp_keys} keys, "
            f"{MMA_ROWS} for each mma, and as many warps have the same ones everywhere: make B_c = "
            f"{c.B_c} a divisor of warp_keys * n_warps = {c.warp_keys * c.n_warps} and a multiple "
            f"of warp_keys, and this one of {MMA_ROWS}"
        )


@RULES.rule
def shared_keys(c: FlashBackwardKernelConfig, arch: Arch) -> Iterator[str]:
    if c.B_r % (MMA_ROWS * c.companions) or c.d_head % (MMA_ROWS * c.companions):
        yield (
            f"the {c.companions} warps of the same keys share the B_r = {c.B_r} queries of a "
            f"block and the d_head = {c.d_head} columns of dK and dV, both in steps of {MMA_ROWS}: "
            f"use fewer warps, or a larger B_c"
        )


@RULES.rule
def dQ_per_warp(c: FlashBackwardKernelConfig, arch: Arch) -> Iterator[str]:
    rows = QUERIES_DQ * c.n_warps
    most = 4 * c.d_head * c.B_r  # a fourth of the warps may idle
    if c.B_r % QUERIES_DQ or rows % c.B_r or c.d_head % SLAB or 3 * c.columns_dQ * rows > most:
        yield (
            f"each of the n_warps = {c.n_warps} warps computes dQ of {QUERIES_DQ} of the B_r = "
            f"{c.B_r} queries in slabs of {SLAB} of the d_head = {c.d_head} columns, and all have "
            f"as many, or a fourth has none: make B_r * d_head a multiple of "
            f"{QUERIES_DQ * SLAB} * n_warps, or three quarters of one, d_head a multiple of "
            f"{SLAB}, and B_r one of {QUERIES_DQ}, at most {QUERIES_DQ} * n_warps"
        )


@RULES.rule
def copy_tile(c: FlashBackwardKernelConfig, arch: Arch) -> Iterator[str]:
    columns = 64 if c.d_head % 64 == 0 else 32  # of an atom of smem
    rows = c.n_threads * COPY_COLUMNS // columns
    for name, value in (("B_r", c.B_r), ("B_c", c.B_c)):
        if value % rows:
            yield (
                f"{c.n_threads} threads that copy 16 bytes each copy {rows} rows x {columns} "
                f"columns at a time, which do not tile {name} = {value}: make {name} a multiple of "
                f"{rows}, or use fewer warps"
            )


@RULES.rule
def smem(c: FlashBackwardKernelConfig, arch: Arch) -> Iterator[str]:
    if c.smem_bytes > arch.smem_per_cta:
        yield (
            f"K and V, stages = {c.stages} blocks of Q and dO, dS and P are {c.smem_bytes} bytes "
            f"of shared memory, more than the {arch.smem_per_cta} that {arch} gives a CTA: use "
            f"fewer stages, or a smaller B_r or B_c"
        )


@RULES.rule
def accumulators(c: FlashBackwardKernelConfig, arch: Arch) -> Iterator[str]:
    demand = register_demand(c)
    taken = demand.dK + demand.dV + demand.S + demand.dP
    if taken > arch.max_registers_per_thread:
        yield (
            f"the accumulators of dK ({demand.dK}), dV ({demand.dV}), S ({demand.S}) and dP "
            f"({demand.dP}) alone take {taken} registers a thread, more than "
            f"{arch.max_registers_per_thread}: use more warps, or a smaller B_r"
        )


@RULES.rule
def register_file(c: FlashBackwardKernelConfig, arch: Arch) -> Iterator[str]:
    yield from refuse_over_register_file(c, resources, arch)


RULES.support_values(SUPPORTED)


@RULES.warning
def spill(c: FlashBackwardKernelConfig, arch: Arch) -> Iterator[str]:
    yield from tell_spills(resources(c, arch), "use a smaller B_r, or more warps")
