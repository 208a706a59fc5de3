"""What makes a config of the SM90 forward family legal: each rule is stated here and nowhere else.

The static_asserts of the kernels are the backstop.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyflash.config.arch import Arch
from pyflash.config.rules import Rules
from pyflash.config.sm90 import MMA_ROWS, budgets, refuse_other_architectures, tell_spills
from pyflash.config.sm90_forward.config import FlashForwardSm90Config
from pyflash.config.sm90_forward.resources import register_demand

MMA_MAX_COLUMNS = 256  # its N; also the rows of a TMA box
MMA_DEPTH = 16  # its K, of 16-bit elements
SLAB_COLUMNS = 32  # 16-bit elements in the 64 bytes of a swizzled row, the narrower TMA box

# What the kernels are written and tested for.
SUPPORTED = {
    "d_head": (64, 96, 128, 192, 256),
    "B_r": (64, 128, 192, 256),
    "n_consumers": (1, 2, 3, 4),
    "stages": (1, 2, 3, 4),
}


RULES = Rules()


@RULES.rule
def architecture(c: FlashForwardSm90Config, arch: Arch) -> Iterator[str]:
    yield from refuse_other_architectures(arch, "sm_90, or a config of sm80_forward")


@RULES.rule
def rows_per_warpgroup(c: FlashForwardSm90Config, arch: Arch) -> Iterator[str]:
    if c.B_r != MMA_ROWS * c.n_consumers:
        yield (
            f"each of the n_consumers = {c.n_consumers} warpgroups owns {MMA_ROWS} rows, those of "
            f"one WGMMA, which are {MMA_ROWS * c.n_consumers}, not B_r = {c.B_r}: make B_r "
            f"{MMA_ROWS} * n_consumers"
        )


@RULES.rule
def mma_columns(c: FlashForwardSm90Config, arch: Arch) -> Iterator[str]:
    if c.B_c % MMA_DEPTH or c.B_c > MMA_MAX_COLUMNS:
        yield (
            f"B_c = {c.B_c} is N of the WGMMA of Q K^T, at most {MMA_MAX_COLUMNS}, and K of that "
            f"of P V, in steps of {MMA_DEPTH}: make B_c a multiple of {MMA_DEPTH}, at most "
            f"{MMA_MAX_COLUMNS}"
        )


@RULES.rule
def slabs(c: FlashForwardSm90Config, arch: Arch) -> Iterator[str]:
    if c.d_head % SLAB_COLUMNS or c.d_head > MMA_MAX_COLUMNS:
        yield (
            f"d_head = {c.d_head} is loaded in TMA boxes of {SLAB_COLUMNS} columns, or of "
            f"{2 * SLAB_COLUMNS}, the widths of a swizzle, and is N of the WGMMA of P V: make "
            f"d_head a multiple of {SLAB_COLUMNS}, at most {MMA_MAX_COLUMNS}"
        )


@RULES.rule
def pingpong_needs_two(c: FlashForwardSm90Config, arch: Arch) -> Iterator[str]:
    if c.pingpong and c.n_consumers < 2:
        yield (
            "pingpong = True lets consumer warpgroups take turns, and there is one: use "
            "n_consumers = 2, 3 or 4, or pingpong = False"
        )


@RULES.rule
def smem(c: FlashForwardSm90Config, arch: Arch) -> Iterator[str]:
    if c.smem_bytes > arch.smem_per_cta:
        yield (
            f"(B_r + 2 * stages * B_c) * d_head * 2 bytes, a slab of O and the mbarriers are "
            f"{c.smem_bytes} bytes of shared memory, more than the {arch.smem_per_cta} that "
            f"{arch} gives a CTA: use fewer stages, or a smaller B_r or B_c"
        )


@RULES.rule
def fragments(c: FlashForwardSm90Config, arch: Arch) -> Iterator[str]:
    demand = register_demand(c)
    taken = demand.S + demand.P + demand.O
    budget = budgets(c.n_consumers, arch, c.ctas_per_sm).consumer
    if taken > budget:
        yield (
            f"S ({demand.S}), P ({demand.P}) and O ({demand.O}) take {taken} registers of a "
            f"consumer thread, which has {budget} with n_consumers = {c.n_consumers}: use a "
            f"smaller B_c, or fewer consumers"
        )


@RULES.rule
def three_have_room(c: FlashForwardSm90Config, arch: Arch) -> Iterator[str]:
    if not c.three_ctas:
        return
    if c.n_consumers != 1:
        yield (
            f"three_ctas = True shares an SM among CTAs of one consumer warpgroup, and there are "
            f"{c.n_consumers}: use n_consumers = 1, or three_ctas = False"
        )
        return
    demand, budget = register_demand(c).peak, budgets(1, arch, 3).consumer
    if demand > budget:
        # NOTE: with two CTAs that is a warning; here ptxas gives up.
        yield (
            f"three CTAs on an SM leave a consumer thread {budget} registers, and S, P and O with "
            f"what is beside them take about {demand}: use a smaller B_c, or three_ctas = False"
        )
    if arch.smem_per_sm // (c.smem_bytes + arch.smem_reserved_per_cta) < 3:
        yield (
            f"three CTAs of {c.smem_bytes} bytes of shared memory are more than {arch} gives an "
            f"SM: use fewer stages, a smaller B_c, or three_ctas = False"
        )


@RULES.rule
def threshold_for_rows(c: FlashForwardSm90Config, arch: Arch) -> Iterator[str]:
    if c.rows_decide and not c.rescale_threshold:
        yield (
            "rows_decide = True lets each row decide whether scores exceed the threshold, and "
            "without one rows decide anyway: set rescale_threshold = True, or rows_decide = False"
        )


RULES.support_values(SUPPORTED)


@RULES.warning
def spill(c: FlashForwardSm90Config, arch: Arch) -> Iterator[str]:
    yield from tell_spills(
        c.n_consumers,
        register_demand(c).peak,
        arch,
        "use a smaller B_c, or fewer consumers",
        c.ctas_per_sm,
    )
