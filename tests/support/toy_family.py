"""A third kernel family, without kernels: a tag word, and fields with defaults at the end.

It imports what a family's own folder in pyflash/config may, and works as its `__init__.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pyflash.config.arch import Arch
from pyflash.config.base import DType, KernelConfig
from pyflash.config.features import FORWARD
from pyflash.config.fields import flag, number, tile
from pyflash.config.record import Family
from pyflash.config.resources import Resources, occupancy
from pyflash.config.rules import Rules


@dataclass(frozen=True, slots=True)
class ToyKernelConfig(KernelConfig):
    tag: ClassVar[str] = "toy"

    dtype: DType = tile()
    d_head: int = tile()
    B_r: int = tile()
    B_c: int = tile()
    swizzled: bool = flag("swizzled")
    Q_tiles: int = number("load_{Q}_{K}_tiles", least=0)
    K_tiles: int = number("load_{Q}_{K}_tiles", least=0)
    stages: int = number("stages_{}", default=1)
    multicast: bool = flag("multicast", default=False)

    n_threads = 128

    @property
    def smem_bytes(self) -> int:
        return (self.B_r + 2 * self.stages * self.B_c) * self.d_head * 2


RULES = Rules()


@RULES.rule
def architecture(c: ToyKernelConfig, arch: Arch) -> Iterator[str]:
    if arch.sm != 90:
        yield f"toy kernels run on sm_90 alone, not on {arch}"


@RULES.support
def supported_values(c: ToyKernelConfig, arch: Arch) -> Iterator[str]:
    if c.B_r != 64:
        yield f"B_r = {c.B_r} is not supported: use 64"


def resources(c: ToyKernelConfig, arch: Arch) -> Resources:
    return occupancy(100, c.smem_bytes, n_warps=4, arch=arch)


def fallback(dtype: DType, d_head: int) -> ToyKernelConfig:
    return ToyKernelConfig(dtype, d_head, 64, 64, True, 0, 2, stages=3)


TOY = ToyKernelConfig(DType.BF16, 128, 64, 32, True, 0, 2)

TOY_FAMILY = Family(
    name="toy_forward",
    op=FORWARD,
    generation=70,
    config_type=ToyKernelConfig,
    rules=RULES,
    resources=resources,
    supported={"d_head": (64, 128), "B_r": (64,)},
    explored={"B_c": (32, 64), "Q_tiles": (0,), "K_tiles": (0, 2), "stages": (1, 2)},
    sets={"prog": lambda: [TOY], "toys": lambda: [TOY, TOY.replace(stages=2)]},
    ranked=(TOY,),
    first_rank=-10,
    host_header="cute_kernels/toy/host.h",
    launcher_header="cute_kernels/toy/launcher.h",
    traits_header="cute_kernels/toy/traits.h",
    kernel_header="cute_kernels/toy/kernel.h",
    kernel="toy_forward_kernel",
    mma_warps=lambda config: 4,
    operand_reader="ldmatrix",
    repeats={"K": "stages", "V": "stages"},
    lacks_swizzle=lambda config: not config.swizzled,
    register_demand=None,
    settled={"K_tiles": 2},
    slowdowns={"swizzled": {False: 2.0}},
    mma_rate=lambda arch: 1.0,
    ladder=(),
    built_features=lambda config: FORWARD.built,
    arch_specific=True,
    fallback=fallback,
)
