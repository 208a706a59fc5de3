"""The named sets of the SM80 backward family, and its preferred configs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyflash.config.base import DType
from pyflash.config.sm80_backward.config import FlashBackwardKernelConfig

# At each d_head what has the most keys first; those behind have room in 99 KB of smem. They are
# built by their own set alone: on no GPU were they measured.
RANKED = tuple(
    FlashBackwardKernelConfig.parse(text).replace(dtype=dtype)
    for text in (
        "(FP16, 128, 64, 128, 8): sm80_bwd+stages_2",
        "(FP16, 128, 64, 64, 4): sm80_bwd+stages_1",
        "(FP16, 64, 128, 128, 8): sm80_bwd+stages_1",
        "(FP16, 256, 64, 64, 8): sm80_bwd+stages_1",
        "(FP16, 256, 32, 32, 4): sm80_bwd+stages_1",
    )
    for dtype in DType
)

SETS: dict[str, Callable[[], Iterable[FlashBackwardKernelConfig]]] = {
    "backward_sm80": lambda: RANKED,
}
