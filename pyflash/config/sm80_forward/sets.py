"""The named sets of the SM80 forward family, and its preferred configs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

from pyflash.config.base import DType
from pyflash.config.features import DROPOUT, FIXED, FORWARD, Features, gathering
from pyflash.config.sm80_forward.config import FlashForwardKernelConfig

# The optimisation ladder: what each step adds, and its config.
LADDER = tuple(
    (adds, FlashForwardKernelConfig.parse(f"(FP16, 128, 64, 64, 4): {words}"))
    for adds, words in (
        ("base", "async+load_0_0_0_tiles"),
        ("swizzling", "async+swizzled+load_0_0_0_tiles"),
        ("eager K/V loads", "async+eager+swizzled+load_0_0_0_tiles"),
        ("interleave ldmatrix with mma", "async+eager+swizzled+load_2_2_2_tiles"),
        ("register double buffering", "async+eager+swizzled+load_2_2_2_tiles+buffer"),
        ("fp32 throughput", "async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"),
        ("auto-tuning", "async+eager+swizzled+load_0_2_2_tiles+opt_softmax"),
    )
)
PROG = [config for _, config in LADDER]

# What has won on every problem measured: the copies and layouts that steps 2, 3 and 6 of the ladder
# bring.
SETTLED = {
    "async_copy": True,
    "eager_load_blocks": True,
    "swizzled": True,
    "optimized_softmax": True,
    "kv_stages": (1, 2),
}

# The ladder on an A100.
SLOWDOWNS = {
    "swizzled": {False: 3.0},
    "eager_load_blocks": {False: 1.08},
    "async_copy": {False: 1.15},
    "optimized_softmax": {False: 1.04},
}


def _of_each_dtype(*short_forms: str) -> list[FlashForwardKernelConfig]:
    """These with a threshold, which was ahead of the same without one wherever it was timed."""
    return [
        FlashForwardKernelConfig.parse(short_form).replace(dtype=dtype, rescale_threshold=True)
        for short_form in short_forms
        for dtype in DType
    ]


# The best few known at each d_head and block size, best first by TFLOP/s at S = 4096 on one H200.
# With `config=""` the selection rule takes from these and from HEAD_DIMS.
DEFAULTS = _of_each_dtype(
    "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
    "(FP16, 128, 128, 32, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax+stages_2",
    "(FP16, 128, 64, 32, 4): async+eager+swizzled+load_2_2_0_tiles+opt_softmax",
    "(FP16, 64, 128, 128, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
    "(FP16, 64, 128, 64, 4): async+eager+swizzled+load_0_0_0_tiles+opt_softmax",
    "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax+stages_2",
    "(FP16, 64, 128, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    "(FP16, 64, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
)

# The head dimensions that are built on request: a large and a small B_r each.
HEAD_DIMS = _of_each_dtype(
    "(FP16, 32, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
    "(FP16, 32, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    "(FP16, 96, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
    "(FP16, 96, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    "(FP16, 192, 128, 64, 8): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
    "(FP16, 192, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
    "(FP16, 256, 128, 32, 8): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
    "(FP16, 256, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
)

# What selection prefers, best first.
RANKED = (*DEFAULTS, *HEAD_DIMS)


# The best of RANKED at each d_head, with rows that decide for themselves: for batch_invariant.
INVARIANT = [
    config.replace(rescale_threshold=False)
    for config in {(c.dtype, c.d_head): c for c in reversed(RANKED)}.values()
]

# At each d_head, of no other set: with dropout alone, so that a library of these takes nothing from
# another.
DROPPING = _of_each_dtype(
    "(FP16, 32, 128, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    "(FP16, 64, 128, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    "(FP16, 96, 128, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    "(FP16, 128, 128, 32, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
    "(FP16, 192, 64, 64, 4): async+eager+swizzled+load_2_2_0_tiles+opt_softmax",
    "(FP16, 256, 64, 64, 4): async+eager+swizzled+load_2_2_0_tiles+opt_softmax",
)

# The best of RANKED at each B_r: with those, all that are built with pages and lists of tiles.
_FOREMOST = {(c.dtype, c.d_head, c.B_r): c for c in reversed(RANKED)}.values()


def built_features(config: FlashForwardKernelConfig) -> Sequence[Features]:
    if config in DROPPING:
        return DROPOUT
    # Its kernels take pages of any size.
    if config in INVARIANT:
        return tuple(dict.fromkeys(map(gathering, FIXED)))
    built = [f for f in FORWARD.built if not f.fp8_kv or reads_fp8(config)]
    if config in _FOREMOST:
        return Features.in_dispatch_order(map(gathering, built))
    return tuple(f for f in built if not (f.paged_kv or f.listed_tiles))


def reads_fp8(config: FlashForwardKernelConfig) -> bool:
    """Whether its kernel is written for caches of e4m3: a warp has 16 rows of the tile, or, where
    warps share the keys, at least 16 of each block."""
    rows = 16 * config.n_warps
    return config.B_r == rows and config.B_c % rows == 0


def fallback(dtype: DType, d_head: int) -> FlashForwardKernelConfig:
    """A config that is legal with every supported d_head on every architecture."""
    config = FlashForwardKernelConfig.parse(
        "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
    )
    return config.replace(dtype=dtype, d_head=d_head)


def _tune() -> list[FlashForwardKernelConfig]:
    space = FlashForwardKernelConfig.product(
        dtype=DType,
        d_head=128,
        B_r=(64, 128),
        B_c=(32, 64),
        n_warps=4,
        async_copy=True,
        eager_load_blocks=True,
        swizzled=True,
        Q_mma_load_K_tiles=(0, 2),
        K_mma_load_K_tiles=(0, 2),
        V_mma_load_K_tiles=(0, 2),
        mma_double_buffer_loads=(False, True),
        optimized_softmax=(False, True),
    )
    return [config for config in space if config.should_autotune_config()]


def _at_block_size(B_r: int, B_c: int) -> list[FlashForwardKernelConfig]:
    return [config for config in _tune() if (config.B_r, config.B_c) == (B_r, B_c)]


def _prog_all() -> list[FlashForwardKernelConfig]:
    """The ladder at every block size: 4 or 8 warps with B_r = 128, 4 with 64, and B_c <= B_r."""
    tiles = [
        {"B_r": B_r, "B_c": B_c, "n_warps": n_warps}
        for B_r, B_c, n_warps in itertools.product((128, 64), (128, 64, 32), (4, 8))
        if B_c <= B_r and (B_r == 128 or n_warps == 4)
    ]
    return [config.replace(**tile) for tile in tiles for config in PROG]


SETS: dict[str, Callable[[], Iterable[FlashForwardKernelConfig]]] = {
    "all": lambda: dict.fromkeys(DEFAULTS + PROG),
    "prog": lambda: PROG,
    "prog_all": _prog_all,
    "tune": _tune,
    "head_dims": lambda: HEAD_DIMS,
    "invariant": lambda: INVARIANT,
    "dropout": lambda: DROPPING,
    "64,32": lambda: _at_block_size(64, 32),
    "64,64": lambda: _at_block_size(64, 64),
    "128,32": lambda: _at_block_size(128, 32),
    "128,64": lambda: _at_block_size(128, 64),
}
