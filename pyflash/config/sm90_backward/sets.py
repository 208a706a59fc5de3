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

# Built by the sets `backward` and `dropout` alone.
_WIDE = _of_each_dtype("(FP16, 256, 64, 128, 2): sm90_bwd+stages_2+dQ_by_red")

RANKED = (*DEFAULTS, *HEAD_DIMS, *_WIDE)

# Configs of the set `dropout` alone, which are built with dropout alone. The set has HEAD_DIMS and
# _WIDE, too, which are built with other features as well.
DROPPING = _of_each_dtype(
    "(FP16, 128, 64, 128, 2): sm90_bwd+stages_3",
    "(FP16, 64, 128, 128, 2): sm90_bwd+stages_3+dQ_by_red",
    "(FP16, 64, 128, 128, 2): sm90_bwd+stages_2",
)


def _sums_from_registers(features: backward.BackwardFeatures) -> bool:
    """Whether that is faster at d_head 64: one order of the sums takes longer then, and there may
    be no registers left for it."""
    return not (features.deterministic or features.changes_P)


def built_features(config: FlashBackwardSm90Config) -> Sequence[backward.BackwardFeatures]:
    built = backward.BACKWARD.built
    if config in (*_FROM_REGISTERS, *_BY_TMA):
        return [f for f in built if _sums_from_registers(f) == (config in _FROM_REGISTERS)]
    if config in DROPPING:
        built = backward.DROPOUT
        if config.d_head == 64:  # one from registers, for sums in any order, and one by TMA
            built = [f for f in built if f.deterministic != config.dQ_by_red]
    elif config in (*HEAD_DIMS, *_WIDE):
        built = (*built, *backward.DROPOUT)
    return built


SETS: dict[str, Callable[[], Iterable[FlashBackwardSm90Config]]] = {
    "all": lambda: DEFAULTS,
    "head_dims": lambda: HEAD_DIMS,
    "backward": lambda: RANKED,
    "dropout": lambda: (*DROPPING, *HEAD_DIMS, *_WIDE),
}
