"""What makes a config of the SM80 forward family legal: each rule is stated here and nowhere else.

The static_asserts of the kernels are the backstop.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyflash.config.arch import Arch
from pyflash.config.resources import refuse_over_register_file, tell_spills
from pyflash.config.rules import Rules, choices
from pyflash.config.sm80_forward.config import FlashForwardKernelConfig
from pyflash.config.sm80_forward.resources import resources

MMA_ROWS = 16  # of the m16n8k16 mma of SM80, along the rows of Q
MMA_COLUMNS = 16  # along the GEMM's K dimension: two tiles of 8
ATOM_ROWS = 8  # of the swizzle atom: ldmatrix reads 8 rows at a time
# 16-bit elements: the 32 banks, or half of them where 64 do not tile d_head.
ATOM_COLUMNS = (64, 32)
COPY_COLUMNS = 8  # 16 bytes, one cp.async

# What the kernels are written and tested for.
SUPPORTED = {
    "d_head": (32, 64, 96, 128, 192, 256),
    "B_r": (64, 128),
    "B_c": (32, 64, 128),
    "n_warps": (4, 8),
    "kv_stages": (1, 2, 3, 4),
}


RULES = Rules()


@RULES.rule
def rows_per_warp(c: FlashForwardKernelConfig, arch: Arch) -> Iterator[str]:
    least = MMA_ROWS * c.n_warps
    if c.B_r % least:
        yield (
            f"each of the n_warps = {c.n_warps} warps owns B_r / n_warps = {c.B_r} / {c.n_warps} "
            f"rows, which must be a multiple of {MMA_ROWS}, the rows of one mma: "
            f"make B_r a multiple of {least}, or change n_warps"
        )


@RULES.rule
def multiple_of_16(c: FlashForwardKernelConfig, arch: Arch) -> Iterator[str]:
    for name in ("d_head", "B_c"):
        value = getattr(c, name)
        if value % MMA_COLUMNS:
            yield (
                f"{name} = {value} is not a multiple of {MMA_COLUMNS}, the columns that one mma "
                f"takes: use {choices(SUPPORTED[name])}"
            )


@RULES.rule
def load_count(c: FlashForwardKernelConfig, arch: Arch) -> Iterator[str]:
    for name, count, _ in _loads(c):
        if count and (count < 2 or count & (count - 1)):
            yield f"{name} = {count} is neither 0 nor an even power of two: use 0, 2, 4, 8, ..."


@RULES.rule
def load_count_limit(c: FlashForwardKernelConfig, arch: Arch) -> Iterator[str]:
    which, otherwise = "", ""
    if c.mma_double_buffer_loads:
        which, otherwise = "half of ", ", or no double buffering"
    for name, count, dimension in _loads(c):
        columns = getattr(c, dimension)
        if count > _most_tiles(c, columns):
            largest = _largest_count(c, columns)
            advice = f"use at most {largest}" if largest >= 2 else "use 0"
            yield (
                f"{name} = {count} tiles of 8 columns are {8 * count} columns, "
                f"more than {which}{dimension} = {columns}: {advice}{otherwise}"
            )


@RULES.rule
def equal_stages(c: FlashForwardKernelConfig, arch: Arch) -> Iterator[str]:
    for name, count, dimension in _loads(c):
        columns = getattr(c, dimension)
        if columns % MMA_COLUMNS or count & (count - 1):
            continue  # other rules
        largest = _largest_count(c, columns)
        if largest < count <= _most_tiles(c, columns):
            yield (
                f"{name} = {count} tiles at a time do not divide the {columns // 8} tiles of 8 "
                f"columns of {dimension} = {columns}: use at most {largest}"
            )


@RULES.rule
def equal_Q_and_K_loads(c: FlashForwardKernelConfig, arch: Arch) -> Iterator[str]:
    Q, K = c.Q_mma_load_K_tiles, c.K_mma_load_K_tiles
    if Q not in (0, K):
        yield (
            f"Q_mma_load_K_tiles = {Q} and K_mma_load_K_tiles = {K} differ, but Q and K are loaded "
            f"stage by stage together: make them equal, or set Q_mma_load_K_tiles = 0 to keep all "
            f"of Q in registers"
        )


@RULES.rule
def eager_needs_async(c: FlashForwardKernelConfig, arch: Arch) -> Iterator[str]:
    if c.eager_load_blocks and not c.async_copy:
        yield (
            "eager_load_blocks = True needs copies that run in the background: "
            "set async_copy = True, or eager_load_blocks = False"
        )


@RULES.rule
def stages_need_eager(c: FlashForwardKernelConfig, arch: Arch) -> Iterator[str]:
    if c.kv_stages > 1 and not c.eager_load_blocks:
        yield (
            f"kv_stages = {c.kv_stages} keeps that many blocks of K and V ahead, which only the "
            "eager schedule loads: set eager_load_blocks = True, or kv_stages = 1"
        )


@RULES.rule
def threshold_needs_optimized_softmax(c: FlashForwardKernelConfig, arch: Arch) -> Iterator[str]:
    if c.rescale_threshold and not c.optimized_softmax:
        yield (
            "rescale_threshold = True compares exponents to base 2, which the optimised softmax "
            "alone has: set optimized_softmax = True, or rescale_threshold = False"
        )


@RULES.rule
def swizzle_atom(c: FlashForwardKernelConfig, arch: Arch) -> Iterator[str]:
    columns = _atom_columns(c)
    for name, size in (("B_r", ATOM_ROWS), ("B_c", ATOM_ROWS), ("d_head", columns)):
        value = getattr(c, name)
        if c.swizzled and value % size:
            yield (
                f"the swizzle atom of {ATOM_ROWS} rows x {columns} columns does not tile "
                f"{name} = {value}: make {name} a multiple of {size}, or set swizzled = False"
            )


@RULES.rule
def copy_tile(c: FlashForwardKernelConfig, arch: Arch) -> Iterator[str]:
    columns = _atom_columns(c)
    rows = c.n_threads * COPY_COLUMNS // columns
    if c.B_c % rows:
        yield (
            f"{c.n_threads} threads that copy 16 bytes each copy {rows} rows x {columns} columns "
            f"at a time, which do not tile B_c = {c.B_c}: make B_c a multiple of {rows}, or use "
            f"fewer warps"
        )


@RULES.rule
def smem(c: FlashForwardKernelConfig, arch: Arch) -> Iterator[str]:
    if c.smem_bytes > arch.smem_per_cta:
        stages, fewer = ("kv_stages * ", ", or fewer stages") if c.kv_stages > 1 else ("", "")
        yield (
            f"(B_r + 2 * {stages}B_c) * d_head * 2 = {c.smem_bytes} bytes of shared memory are "
            f"more than the {arch.smem_per_cta} that {arch} gives a CTA: use a smaller B_r or "
            f"B_c{fewer}"
        )


@RULES.rule
def accumulators(c: FlashForwardKernelConfig, arch: Arch) -> Iterator[str]:
    S, O = (c.B_r * columns // c.n_threads for columns in (c.B_c, c.d_head))  # noqa: E741
    taken = S + O
    if taken > arch.max_registers_per_thread:
        yield (
            f"the accumulators of S ({S}) and O ({O}) alone take {taken} "
            f"registers a thread, more than {arch.max_registers_per_thread}: use more warps, or a "
            f"smaller B_r or B_c"
        )


@RULES.rule
def register_file(c: FlashForwardKernelConfig, arch: Arch) -> Iterator[str]:
    yield from refuse_over_register_file(c, resources, arch)


RULES.support_values(SUPPORTED)


@RULES.warning
def spill(c: FlashForwardKernelConfig, arch: Arch) -> Iterator[str]:
    yield from tell_spills(resources(c, arch), "use smaller blocks or load counts, or more warps")


def _loads(c: FlashForwardKernelConfig) -> Iterator[tuple[str, int, str]]:
    """For each operand the field's name, its count, and the field that is its K dimension."""
    for operand, dimension in (("Q", "d_head"), ("K", "d_head"), ("V", "B_c")):
        name = f"{operand}_mma_load_K_tiles"
        yield name, getattr(c, name), dimension


def _most_tiles(c: FlashForwardKernelConfig, columns: int) -> int:
    """The most fragments of 8 columns in a stage: the K dimension, or half of it for two stages."""
    return columns // (16 if c.mma_double_buffer_loads else 8)


def _largest_count(c: FlashForwardKernelConfig, columns: int) -> int:
    """The largest power of two that divides the tiles of the K dimension into such stages."""
    tiles = columns // 8
    return min(tiles & -tiles, _most_tiles(c, columns))


def _atom_columns(c: FlashForwardKernelConfig) -> int:
    """The columns of the swizzle atom, and of a row of copying threads in either smem layout."""
    wide, narrow = ATOM_COLUMNS
    return narrow if c.d_head % wide else wide
