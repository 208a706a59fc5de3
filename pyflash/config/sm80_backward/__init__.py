"""The SM80 backward family: `cp.async`, `ldmatrix`, m16n8k16; runs on sm_80 and newer ones."""

from pyflash.config.backward import BACKWARD
from pyflash.config.record import Family
from pyflash.config.sm80_backward.config import FlashBackwardKernelConfig
from pyflash.config.sm80_backward.resources import register_demand, resources
from pyflash.config.sm80_backward.rules import RULES, SUPPORTED
from pyflash.config.sm80_backward.sets import DROPPING, RANKED, SETS, built_features

SM80_BACKWARD = Family(
    name="sm80_backward",
    op=BACKWARD,
    generation=80,
    config_type=FlashBackwardKernelConfig,
    rules=RULES,
    resources=resources,
    supported=SUPPORTED,
    explored={},
    sets=SETS,
    ranked=(*RANKED, *DROPPING),
    host_header="cute_kernels/sm80/backward/host.h",
    launcher_header="cute_kernels/sm80/backward/launcher.h",
    traits_header="cute_kernels/sm80/backward/traits.h",
    traits="backward::KernelTraits",
    kernel_header="cute_kernels/sm80/backward/kernel.h",
    kernel="flash_backward_kernel",
    mma_warps=lambda config: config.n_warps,
    operand_reader="ldmatrix",
    repeats={"Q": "stages", "dO": "stages"},
    lacks_swizzle=lambda config: False,
    register_demand=register_demand,
    settled={},
    slowdowns={},
    mma_rate=lambda arch: 0.62 if arch.sm == 90 else 1.0,  # beside warpgroup MMAs
    ladder=(),
    built_features=built_features,
    # Behind those of the SM90 family, which are faster where they run.
    first_rank=1000,
    emulation_header="cute_kernels/sm80/backward/emulated.h",
    gradient_header="cute_kernels/sm80/backward/variant_kernel.h",
    variant_launcher="cute_kernels/sm80/backward/variant_launch.h",
)

__all__ = ["SM80_BACKWARD", "FlashBackwardKernelConfig"]
