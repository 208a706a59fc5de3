"""The named sets of the SM80 backward family, and its preferred configs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pyflash.config import backward
from pyflash.config.base import DType
from pyflash.config.sm80_backward.config import FlashBackwardKernelConfig


def _of_each_dtype(*texts: str) -> tuple[FlashBackwardKernelConfig, ...]:
    return tuple(
        FlashBackwardKernelConfig.parse(text).replace(dtype=dtype)
        for text in texts
        for dtype in DType
    )


# At each d_head the fastest on an H200 first: docs/experiments/2026-11-sm80-backward.md. Those
# behind have room in 99 KB of smem. They are built by their own set alone: no GPU of their
# generation was measured.
RANKED = _of_each_dtype(
    "(FP16, 128, 64, 128, 8): sm80_bwd+stages_2+warp_keys_32",
    "(FP16, 128, 64, 64, 4): sm80_bwd+stages_1+warp_keys_32",
    "(FP16, 64, 64, 64, 4): sm80_bwd+stages_3+warp_keys_32",
    "(FP16, 96, 64, 128, 8): sm80_bwd+stages_2+warp_keys_32",
    "(FP16, 96, 64, 64, 4): sm80_bwd+stages_2+warp_keys_32",
    "(FP16, 192, 64, 64, 8): sm80_bwd+stages_2",
    "(FP16, 192, 32, 64, 8): sm80_bwd+stages_1",
    "(FP16, 256, 64, 64, 8): sm80_bwd+stages_1",
    "(FP16, 256, 32, 32, 4): sm80_bwd+stages_1",
)

# Configs of the set `dropout` alone, which are built with dropout alone.
DROPPING = _of_each_dtype(
    "(FP16, 128, 64, 128, 8): sm80_bwd+stages_1",
    "(FP16, 128, 64, 64, 8): sm80_bwd+stages_1",
    "(FP16, 64, 64, 64, 4): sm80_bwd+stages_2",
    "(FP16, 256, 64, 32, 8): sm80_bwd+stages_1",
)


def built_features(config: FlashBackwardKernelConfig) -> Sequence[backward.BackwardFeatures]:
    return backward.DROPOUT if config in DROPPING else backward.BACKWARD.built


SETS: dict[str, Callable[[], Iterable[FlashBackwardKernelConfig]]] = {
    "backward_sm80": lambda: RANKED,
    "dropout": lambda: DROPPING,
}
