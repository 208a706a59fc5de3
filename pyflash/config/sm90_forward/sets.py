"""The named sets of the SM90 forward family, its preferred configs, and what each is built with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pyflash.config.base import DType
from pyflash.config.features import Features
from pyflash.config.sm90_forward.config import FlashForwardSm90Config

# At each d_head the best on one H200, best first. At 64, the smaller tile is for grids that the
# larger one leaves small.
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


# Built by default: what has run on a GPU. Other problems, with softcap, or with a left window or
# sinks over a narrower head, run in the SM80 family.
BUILT = tuple(
    map(
        Features.parse,
        (
            "plain",
            "right_window",
            "right_window+left_window",
            "predicated_head_dim",
            "right_window+predicated_head_dim",
            "right_window+left_window+sinks",
        ),
    )
)


def built_features(_: FlashForwardSm90Config) -> Sequence[Features]:
    return BUILT
