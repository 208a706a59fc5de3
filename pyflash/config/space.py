"""Sets of configs: those with a name, and those that users write:

>>> space = Space(dtype="FP16", d_head=128, B_r=[64, 128], B_c=64).filter(lambda c: c.swizzled)
>>> candidates = list(space.legal("sm_90"))
>>> for config, violations in space.explain("sm_90"):
...     print(config, violations)
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from pyflash.config.arch import Arch
from pyflash.config.sm80_forward.config import (
    FIELDS,
    LOAD_COUNTS,
    DType,
    FlashForwardKernelConfig,
    check_field,
)
from pyflash.config.sm80_forward.rules import SUPPORTED, Violation

# The values a field takes in a Space that says nothing of it.
ALL_VALUES: dict[str, tuple[Any, ...]] = {
    "dtype": tuple(DType),
    **SUPPORTED,
    **dict.fromkeys(LOAD_COUNTS, (0, 2, 4, 8)),
    **{name: (False, True) for name, kind in FIELDS.items() if kind is bool},
}


class Refusal(NamedTuple):
    config: FlashForwardKernelConfig
    violations: list[Violation]


class Space:
    """A cartesian product of field values, filtered; immutable, iterated in ascending order.

    Each field is one value or several, a dtype may be given by its name; a field that is not named
    takes all its supported values (load counts: 0, 2, 4, 8). Raises TypeError or ValueError for a
    field that a config does not have and for a value that it cannot hold.
    """

    def __init__(self, **values: Any) -> None:
        if unknown := values.keys() - FIELDS.keys():
            raise TypeError(f"unknown fields {sorted(unknown)}: a config has {', '.join(FIELDS)}")
        self._values = {name: _choices(name, values.get(name, ALL_VALUES[name])) for name in FIELDS}
        self._predicates: tuple[Callable[[FlashForwardKernelConfig], bool], ...] = ()

    def filter(self, predicate: Callable[[FlashForwardKernelConfig], bool]) -> Space:
        space = Space(**self._values)
        space._predicates = (*self._predicates, predicate)
        return space

    def legal(self, arch: Arch | str | int) -> Space:
        """The configs without violations on `arch`."""
        arch = Arch.of(arch)
        return self.filter(lambda config: not config.violations(arch))

    def explain(self, arch: Arch | str | int) -> list[Refusal]:
        """The restriction log: each config that `arch` refuses, with every rule it breaks."""
        arch = Arch.of(arch)
        refusals = (Refusal(config, config.violations(arch)) for config in self)
        return [refusal for refusal in refusals if refusal.violations]

    def __iter__(self) -> Iterator[FlashForwardKernelConfig]:
        for values in itertools.product(*self._values.values()):
            config = FlashForwardKernelConfig(*values)
            if all(predicate(config) for predicate in self._predicates):
                yield config

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _choices(name: str, values: Any) -> tuple[Any, ...]:
    """Ascending, without repetitions: so the product is in the order of the configs."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        values = (values,)
    values = [DType.__members__.get(value, value) for value in values]
    for value in values:
        check_field(name, value)
    return tuple(sorted(set(values)))


TUNE = Space(
    dtype=["FP16", "BF16"],
    d_head=128,
    B_r=[64, 128],
    B_c=[32, 64],
    n_warps=4,
    async_copy=True,
    eager_load_blocks=True,
    swizzled=True,
    Q_mma_load_K_tiles=[0, 2],
    K_mma_load_K_tiles=[0, 2],
    V_mma_load_K_tiles=[0, 2],
    mma_double_buffer_loads=[False, True],
    optimized_softmax=[False, True],
).filter(FlashForwardKernelConfig.should_autotune_config)

# The optimisation ladder, step by step.
PROG = [
    FlashForwardKernelConfig.parse(f"(FP16, 128, 64, 64, 4): {words}")
    for words in (
        "async+load_0_0_0_tiles",
        "async+swizzled+load_0_0_0_tiles",
        "async+eager+swizzled+load_0_0_0_tiles",
        "async+eager+swizzled+load_2_2_2_tiles",
        "async+eager+swizzled+load_2_2_2_tiles+buffer",
        "async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
        "async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    )
]


def _of_each_dtype(*short_forms: str) -> list[FlashForwardKernelConfig]:
    return [
        FlashForwardKernelConfig.parse(short_form).replace(dtype=dtype)
        for short_form in short_forms
        for dtype in DType
    ]


# The best few known at each d_head and block size, best first by TFLOP/s at S = 4096 on one H200.
# With `config=""` the selection rule takes from these and from HEAD_DIMS.
DEFAULTS = _of_each_dtype(
    "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
    "(FP16, 128, 128, 32, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    "(FP16, 128, 64, 32, 4): async+eager+swizzled+load_2_2_0_tiles+opt_softmax",
    "(FP16, 64, 128, 128, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
    "(FP16, 64, 128, 64, 4): async+eager+swizzled+load_0_0_0_tiles+opt_softmax",
    "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    "(FP16, 64, 128, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
    "(FP16, 64, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
)

# Of the head dimensions that are built on request, a large and a small B_r each.
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
_RANKED = [*DEFAULTS, *HEAD_DIMS]
UNRANKED = 1_000_000


def rank(config: FlashForwardKernelConfig) -> int:
    """The order of preference where several configs would do, smaller first."""
    config = config.canonical()
    return _RANKED.index(config) if config in _RANKED else UNRANKED


def _prog_all() -> list[FlashForwardKernelConfig]:
    """The ladder at every block size: 4 or 8 warps with B_r = 128, 4 with 64, and B_c <= B_r."""
    tiles = [
        {"B_r": B_r, "B_c": B_c, "n_warps": n_warps}
        for B_r, B_c, n_warps in itertools.product((128, 64), (128, 64, 32), (4, 8))
        if B_c <= B_r and (B_r == 128 or n_warps == 4)
    ]
    return [config.replace(**tile) for tile in tiles for config in PROG]


def _at_block_size(B_r: int, B_c: int) -> list[FlashForwardKernelConfig]:
    return [config for config in TUNE if (config.B_r, config.B_c) == (B_r, B_c)]


_SETS: dict[str, Callable[[], Iterable[FlashForwardKernelConfig]]] = {
    "all": lambda: dict.fromkeys(DEFAULTS + PROG),
    "prog": lambda: PROG,
    "prog_all": _prog_all,
    "tune": lambda: TUNE,
    "head_dims": lambda: HEAD_DIMS,
    "64,32": lambda: _at_block_size(64, 32),
    "64,64": lambda: _at_block_size(64, 64),
    "128,32": lambda: _at_block_size(128, 32),
    "128,64": lambda: _at_block_size(128, 64),
}
SET_NAMES = tuple(_SETS)


def named_set(name: str) -> list[FlashForwardKernelConfig]:
    """The configs of a set, without repetitions: `all` is what is built by default, `prog` the
    ladder in its order, `prog_all` the ladder at every block size, `tune` what a tuning run tries,
    "B_r,B_c" the part of `tune` at that block size, `head_dims` the head dimensions 32, 96, 192 and
    256, which `all` lacks.

    Raises ValueError, listing the names, for any other.
    """
    if name not in _SETS:
        raise ValueError(f"unknown set of kernels {name!r}: expected one of {list(SET_NAMES)}")
    return list(_SETS[name]())


def from_environment() -> list[FlashForwardKernelConfig]:
    """The set that PYFLASH_KERNELS names, or else KERNELS, or else `all`."""
    name = os.environ.get("PYFLASH_KERNELS") or os.environ.get("KERNELS") or "all"
    return named_set(name)
