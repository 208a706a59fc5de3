"""The named sets of the SM90 backward family, and its preferred configs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pyflash.config import backward
from pyflash.config.base import DType
from pyflash.config.sm90_backward.config import FlashBackwardSm90Config


def _of_each_dtype(*texts: str) -> tuple[FlashBackwardSm90Config, ...]:
    return tuple(
        FlashBackwardSm90Config.parse(text).replace(dtype=dtype)
        for text in texts
        for dtype in DType
    )


# At each d_head the best on one GPU first: docs/experiments/2026-11-backward.md.
_FROM_REGISTERS = _of_each_dtype("(FP16, 64, 128, 128, 2): sm90_bwd+stages_3+dQ_by_red+early_dP")
_BY_TMA = _of_each_dtype("(FP16, 64, 128, 128, 2): sm90_bwd+stages_2+early_dP")
DEFAULTS = (
    *_of_each_dtype("(FP16, 128, 64, 128, 2): sm90_bwd+stages_3+overlap"),
    *_FROM_REGISTERS,
    *_BY_TMA,
)

# Of other head dimensions, built on request.
HEAD_DIMS = _of_each_dtype(
    "(FP16, 96, 64, 128, 2): sm90_bwd+stages_4+overlap",
    "(FP16, 192, 64, 64, 2): sm90_bwd+stages_2",
)

# Built by its own set alone. On one H200 it is 1.07 to 2.0 times as fast as PyTorch's flash
# backward: docs/experiments/2026-11-backward.md.
_WIDE = _of_each_dtype("(FP16, 256, 64, 64, 2): sm90_bwd+stages_2+dQ_by_red")

RANKED = (*DEFAULTS, *HEAD_DIMS, *_WIDE)

# Configs of the set `dropout` alone, which are built with dropout alone. The set has HEAD_DIMS and
# _WIDE, too, which are built with all features.
DROPPING = _of_each_dtype(
    "(FP16, 128, 64, 128, 2): sm90_bwd+stages_2+overlap",
    "(FP16, 64, 128, 128, 2): sm90_bwd+stages_2+overlap",
)


def _sums_from_registers(features: backward.BackwardFeatures) -> bool:
    """Whether that is faster at d_head 64: one order of the sums takes longer then, and there may
    be no registers left for it."""
    return not (features.deterministic or features.changes_P)


def built_features(config: FlashBackwardSm90Config) -> Sequence[backward.BackwardFeatures]:
    if config in DROPPING:
        return backward.DROPOUT
    built = backward.BACKWARD.built
    if config in (*_FROM_REGISTERS, *_BY_TMA):
        return [f for f in built if _sums_from_registers(f) == (config in _FROM_REGISTERS)]
    return (*built, *backward.DROPOUT) if config in (*HEAD_DIMS, *_WIDE) else built


SETS: dict[str, Callable[[], Iterable[FlashBackwardSm90Config]]] = {
    "all": lambda: DEFAULTS,
    "head_dims": lambda: HEAD_DIMS,
    "backward": lambda: RANKED,
    "dropout": lambda: (*DROPPING, *HEAD_DIMS, *_WIDE),
}
