"""The SM90 forward family: WGMMA, TMA, warps with roles; runs on sm_90 alone."""

from pyflash.config.features import FORWARD
from pyflash.config.record import Family
from pyflash.config.sm90 import RUNS_ON, WARPGROUP
from pyflash.config.sm90_forward.config import FlashForwardSm90Config
from pyflash.config.sm90_forward.resources import register_demand, resources, variant_refusal
from pyflash.config.sm90_forward.rules import RULES, SUPPORTED
from pyflash.config.sm90_forward.sets import (
    DROPPING,
    FIRST_RANK,
    RANKED,
    SETS,
    SETTLED,
    SLOWDOWNS,
    built_features,
    for_variants,
)

SM90_FORWARD = Family(
    name="sm90_forward",
    op=FORWARD,
    generation=90,
    config_type=FlashForwardSm90Config,
    rules=RULES,
    resources=resources,
    supported=SUPPORTED,
    explored={"B_c": (64, 96, 128, 160, 176, 192)},
    sets=SETS,
    ranked=(*RANKED, *DROPPING),
    first_rank=FIRST_RANK,
    host_header="cute_kernels/sm90/forward/host.h",
    launcher_header="cute_kernels/sm90/forward/launcher.h",
    traits_header="cute_kernels/sm90/forward/tiled.h",
    kernel_header="cute_kernels/sm90/forward/kernel.h",
    kernel="flash_forward_sm90_kernel",
    mma_warps=lambda config: WARPGROUP // 32 * config.n_consumers,
    operand_reader="WGMMA",
    repeats={"Q": "warpgroups", "K": "stages", "V": "stages", "V^T": "stages"},
    lacks_swizzle=lambda config: False,
    lacks=frozenset({"fp8_kv"}),
    register_demand=register_demand,
    settled=SETTLED,
    slowdowns=SLOWDOWNS,
    mma_rate=lambda arch: 1.0,
    ladder=(),
    built_features=built_features,
    emulation_header="cute_kernels/sm90/forward/emulated.h",
    variant_header="cute_kernels/sm90/forward/variant_kernel.h",
    variant_launcher="cute_kernels/sm90/forward/variant_launch.h",
    variant_refusal=variant_refusal,
    for_variants=for_variants,
    emulation_watches_registers=True,
    arch_specific=True,
    runs_on=(RUNS_ON,),
)

__all__ = ["SM90_FORWARD", "FlashForwardSm90Config"]
