"""What makes a config of the SM90 backward family legal: each rule is stated here and nowhere else.

The static_asserts of the kernels are the backstop.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyflash.config.arch import Arch
from pyflash.config.rules import Rules
from pyflash.config.sm90 import (
    MMA_ROWS,
    budgets,
    refuse_other_architectures,
    tell_spills,
)
from pyflash.config.sm90_backward.config import NARROWEST, SLAB, FlashBackwardSm90Config
from pyflash.config.sm90_backward.resources import register_demand

# What the kernels are written and tested for.
SUPPORTED = {
    "d_head": (64, 96, 128, 192, 256),
    "B_r": (64, 128),
    "n_consumers": (2,),
    "stages": (2, 3, 4),
}

RULES = Rules()


def _may_share_keys(c: FlashBackwardSm90Config) -> bool:
    """Whether warpgroups with the same keys compute dQ of all columns together."""
    return c.d_head > 128 and c.n_consumers * c.dQ_columns == c.d_head


@RULES.rule
def architecture(c: FlashBackwardSm90Config, arch: Arch) -> Iterator[str]:
    yield from refuse_other_architectures(arch, "sm_90, or no config of this op")


@RULES.rule
def keys_per_warpgroup(c: FlashBackwardSm90Config, arch: Arch) -> Iterator[str]:
    if not c.shares_keys and c.B_c != MMA_ROWS * c.n_consumers:
        yield (
            f"each of the n_consumers = {c.n_consumers} warpgroups owns {MMA_ROWS} keys, the rows "
            f"of one WGMMA, which are {MMA_ROWS * c.n_consumers}, not B_c = {c.B_c}: make B_c "
            f"{MMA_ROWS} * n_consumers"
            + (f", or {MMA_ROWS}, which all of them have" if _may_share_keys(c) else "")
        )


@RULES.rule
def slabs(c: FlashBackwardSm90Config, arch: Arch) -> Iterator[str]:
    of_d_head = 2 * NARROWEST
    for name, value, of in (("d_head", c.d_head, of_d_head), ("B_r", c.B_r, SLAB)):
        if value % of:
            yield (
                f"{name} = {value} is divided into slabs of {of}, in which tiles lie in shared "
                f"memory: make {name} a multiple of {of}"
            )


@RULES.rule
def dQ_per_warpgroup(c: FlashBackwardSm90Config, arch: Arch) -> Iterator[str]:
    columns = c.d_head // c.column_parts
    of_cta = c.n_consumers * MMA_ROWS * c.dQ_columns
    if c.B_r * columns != of_cta:
        cure = (
            f"B_r {MMA_ROWS} and B_c {MMA_ROWS if _may_share_keys(c) else 2 * MMA_ROWS}"
            if c.d_head > 128
            else f"B_r {of_cta // columns}"
        )
        yield (
            f"each of the n_consumers = {c.n_consumers} warpgroups computes {MMA_ROWS} x "
            f"{c.dQ_columns} elements of a block's dQ, of which a CTA has B_r * {columns} = "
            f"{c.B_r * columns}: make {cure}"
        )


@RULES.rule
def overlap_needs_stages(c: FlashBackwardSm90Config, arch: Arch) -> Iterator[str]:
    if c.overlap and c.stages < 2:
        yield (
            "overlap = True computes scores of a block while the one before is in use, and there "
            "is one stage: use stages = 2 or more, or overlap = False"
        )


@RULES.rule
def columns_in_parts(c: FlashBackwardSm90Config, arch: Arch) -> Iterator[str]:
    if c.column_parts > 1 and (c.overlap or not c.dQ_by_red):
        yield (
            f"at d_head = {c.d_head} and B_c = {c.B_c} a CTA has half of the columns, and no room "
            "for dQ or for scores of two blocks: use dQ_by_red = True and overlap = False"
        )


@RULES.rule
def early_dP_is_an_order(c: FlashBackwardSm90Config, arch: Arch) -> Iterator[str]:
    if c.early_dP and c.overlap:
        yield (
            "early_dP = True and overlap = True are two orders of one loop's steps: use one of them"
        )
    if c.early_dP and c.d_head > 64:
        yield (
            "early_dP = True has P, dP and dQ of a block in registers beside dK and dV, for which "
            f"there are enough up to d_head = 64, not at {c.d_head}: use early_dP = False"
        )


@RULES.rule
def smem(c: FlashBackwardSm90Config, arch: Arch) -> Iterator[str]:
    if c.smem_bytes > arch.smem_per_cta:
        yield (
            f"K and V, stages = {c.stages} blocks of Q and dO, dS, dQ and the mbarriers are "
            f"{c.smem_bytes} bytes of shared memory, more than the {arch.smem_per_cta} that "
            f"{arch} gives a CTA: use fewer stages"
        )


@RULES.rule
def fragments(c: FlashBackwardSm90Config, arch: Arch) -> Iterator[str]:
    demand = register_demand(c)
    taken = demand.peak - demand.base
    budget = budgets(c.n_consumers, arch).consumer
    if taken > budget:
        yield (
            f"dK ({demand.dK}), dV ({demand.dV}), S ({demand.S}), dP ({demand.dP}) and P "
            f"({demand.P}) take {taken} registers of a consumer thread, which has {budget} with "
            f"n_consumers = {c.n_consumers}: use a smaller B_r or d_head"
        )


RULES.support_values(SUPPORTED)


@RULES.warning
def spill(c: FlashBackwardSm90Config, arch: Arch) -> Iterator[str]:
    yield from tell_spills(c.n_consumers, register_demand(c).peak, arch, "use a smaller B_r")
