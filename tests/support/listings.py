"""Recorded machine code: what cuobjdump -sass printed of two kernels of the ladder, for sm_90."""

from __future__ import annotations

import gzip
from pathlib import Path

from pyflash.config import FlashForwardKernelConfig
from pyflash.inspect import sass
from pyflash.inspect.compiled import CompiledKernel, compiled_kernel

_FOLDER = Path(__file__).parent.parent / "inspect" / "data" / "sass"
BASE = FlashForwardKernelConfig.parse("(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles")
BEST = FlashForwardKernelConfig.parse(
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"
)
_FILES = {
    BASE: "fp16_128_64_64_4_async_load_0_0_0.sass.gz",
    BEST: "fp16_128_64_64_4_async_eager_swizzled_load_0_2_2_opt_softmax.sass.gz",
}


def recorded(config: FlashForwardKernelConfig) -> sass.Kernel:
    """The plain kernel of BASE or BEST."""
    with gzip.open(_FOLDER / _FILES[config], "rt") as file:
        (kernel,) = sass.parse(file.read())
    return kernel


def recorded_kernel(config: FlashForwardKernelConfig) -> CompiledKernel:
    """The same with what ptxas said of it."""
    figures = {
        "registers": {BASE: 202, BEST: 225}[config],
        "spill_store_bytes": 0,
        "spill_load_bytes": 0,
        "stack_bytes": 0,
        "static_smem_bytes": 0,
    }
    return compiled_kernel(config, recorded(config), figures)
