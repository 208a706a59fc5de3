"""Machine code: what cuobjdump -sass printed of two kernels of the ladder, for sm_90, and listings
of single instructions."""

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

# CUDA 13.0 made this for sm_90a: the sum reads R31 as it was before the product.
STALE_READ = (
    "MOV R63, R31",
    "LOP3.LUT R30, R30, 0x60, RZ, 0x3c, !PT",
    "MOV R33, R31.reuse",
    "MOV R63, R30",
    "@!P2 LEA R48, P3, R38.reuse, R48, 0x2",
    "IMAD R25, R43, UR10, RZ",
    "@!P0 LEA R52, P4, R38, R52, 0x2",
    "IMAD R31, R18.reuse, UR11, R25",
    "F2FP.F16.F32.PACK_AB R33, R99, R98",
    "IMAD.WIDE.U32 R50, R18, UR10, R36",
    "IADD3 R39, R39, R31, RZ",
)


def recorded_listing(config: FlashForwardKernelConfig) -> str:
    """What cuobjdump printed of the plain kernel of BASE or BEST."""
    with gzip.open(_FOLDER / _FILES[config], "rt") as file:
        return file.read()


def listing(*instructions: str) -> str:
    """As cuobjdump prints a kernel of these."""
    head = "\tcode for sm_90a\n\t\tFunction : _Z6kernelv\n"
    lines = (f"        /*{16 * i:04x}*/    {text} ;\n" for i, text in enumerate(instructions))
    return head + "".join(lines)


def recorded(config: FlashForwardKernelConfig) -> sass.Kernel:
    """The plain kernel of BASE or BEST."""
    (kernel,) = sass.parse(recorded_listing(config))
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
