"""The SM80 forward family: `cp.async`, `ldmatrix`, m16n8k16; runs on sm_80 and everything newer."""

from pyflash.config.features import FORWARD
from pyflash.config.record import Family
from pyflash.config.sm80_forward.config import LOAD_COUNTS, FlashForwardKernelConfig
from pyflash.config.sm80_forward.resources import register_demand, resources
from pyflash.config.sm80_forward.rules import RULES, SUPPORTED
from pyflash.config.sm80_forward.sets import (
    DROPPING,
    LADDER,
    RANKED,
    SETS,
    SETTLED,
    SLOWDOWNS,
    built_features,
    fallback,
)

SM80_FORWARD = Family(
    name="sm80_forward",
    op=FORWARD,
    generation=80,
    config_type=FlashForwardKernelConfig,
    rules=RULES,
    resources=resources,
    supported=SUPPORTED,
    explored=dict.fromkeys(LOAD_COUNTS, (0, 2, 4, 8)),
    sets=SETS,
    ranked=(*RANKED, *DROPPING),
    host_header="cute_kernels/sm80/forward/host.h",
    launcher_header="cute_kernels/sm80/forward/launcher.h",
    traits_header="cute_kernels/sm80/forward/tiled.h",
    kernel_header="cute_kernels/sm80/forward/kernel.h",
    kernel="flash_forward_kernel",
    mma_warps=lambda config: config.n_warps,
    operand_reader="ldmatrix",
    repeats={"K": "stages", "V": "stages", "V^T": "stages"},
    lacks_swizzle=lambda config: not config.swizzled,
    register_demand=register_demand,
    settled=SETTLED,
    slowdowns=SLOWDOWNS,
    mma_rate=lambda arch: 0.62 if arch.sm == 90 else 1.0,  # beside warpgroup MMAs
    ladder=LADDER,
    built_features=built_features,
    lacks=frozenset({"equal_shares"}),
    emulation_header="cute_kernels/sm80/forward/emulated.h",
    variant_header="cute_kernels/sm80/forward/variant_kernel.h",
    variant_launcher="cute_kernels/sm80/forward/variant_launch.h",
    fallback=fallback,
)

__all__ = ["SM80_FORWARD", "FlashForwardKernelConfig"]
