"""The named sets of the SM90 forward family, its preferred configs, and what each is built with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from pyflash.config.base import DType
from pyflash.config.features import BUILT, Features
from pyflash.config.sm90_forward.config import FlashForwardSm90Config
from pyflash.config.sm90_forward.rules import RUNS_ON

# At each d_head the best on one H200, best first. At 64, the smaller tile is for grids that the
# larger one leaves small, and for softcap.
DEFAULTS = [
    FlashForwardSm90Config.parse(short_form).replace(dtype=dtype)
    for short_form in (
        "(FP16, 128, 128, 128, 2): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold",
        "(FP16, 64, 192, 128, 3): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold",
        "(FP16, 64, 128, 128, 2): sm90+stages_2+overlap+pingpong+persistent+rescale_threshold",
    )
    for dtype in DType
]

# What selection prefers, best first; before any config of the SM80 family.
RANKED = tuple(DEFAULTS)
FIRST_RANK = -100

SETS: dict[str, Callable[[], Iterable[FlashForwardSm90Config]]] = {
    "all": lambda: DEFAULTS,
    "sm90": lambda: DEFAULTS,
}


# Registers that a softcap takes of a consumer thread beside what the model counts.
SOFTCAP_REGISTERS = 16


def built_features(config: FlashForwardSm90Config) -> Sequence[Features]:
    """Those of `BUILT`; without softcap where it would spill, 150 bytes at (64, 192, 128, 3)."""
    r = config.resources(RUNS_ON)
    if r.register_demand + SOFTCAP_REGISTERS <= r.register_limit:
        return BUILT
    return tuple(dict.fromkeys(dataclasses.replace(f, softcap=False) for f in BUILT))
