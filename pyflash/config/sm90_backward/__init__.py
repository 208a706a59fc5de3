"""The SM90 backward family: WGMMA, TMA, warps with roles; runs on sm_90 alone."""

from pyflash.config.backward import BACKWARD
from pyflash.config.record import Family
from pyflash.config.sm90 import RUNS_ON, WARPGROUP
from pyflash.config.sm90_backward.config import FlashBackwardSm90Config
from pyflash.config.sm90_backward.resources import register_demand, resources
from pyflash.config.sm90_backward.rules import RULES, SUPPORTED
from pyflash.config.sm90_backward.sets import DROPPING, RANKED, SETS, built_features

SM90_BACKWARD = Family(
    name="sm90_backward",
    op=BACKWARD,
    generation=90,
    config_type=FlashBackwardSm90Config,
    rules=RULES,
    resources=resources,
    supported=SUPPORTED,
    explored={"B_c": (64, 128)},
    sets=SETS,
    ranked=(*RANKED, *DROPPING),
    host_header="cute_kernels/sm90/backward/host.h",
    launcher_header="cute_kernels/sm90/backward/launcher.h",
    traits_header="cute_kernels/sm90/backward/traits.h",
    traits="backward::KernelTraits",
    kernel_header="cute_kernels/sm90/backward/kernel.h",
    kernel="flash_backward_sm90_kernel",
    mma_warps=lambda config: WARPGROUP // 32 * config.n_consumers,
    operand_reader="WGMMA",
    repeats={"Q": "stages", "dO": "stages", "dS^T": "stages"},
    lacks_swizzle=lambda config: False,
    register_demand=register_demand,
    settled={},
    slowdowns={},
    mma_rate=lambda arch: 1.0,
    ladder=(),
    built_features=built_features,
    emulation_header="cute_kernels/sm90/backward/emulated.h",
    gradient_header="cute_kernels/sm90/backward/variant_kernel.h",
    variant_launcher="cute_kernels/sm90/backward/variant_launch.h",
    emulation_watches_registers=True,
    arch_specific=True,
    runs_on=(RUNS_ON,),
)

__all__ = ["SM90_BACKWARD", "FlashBackwardSm90Config"]
