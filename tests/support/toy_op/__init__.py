"""A second op, y = -x, with a family that has real code: its own features, params, phases and
workspace. Its kernels are functions of the host, so that g++ builds and runs them.

It imports what a family's own folder in pyflash/config may, and works as its `__init__.py`; the
folder `negate/` is its C++.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pyflash.config.arch import Arch
from pyflash.config.base import DType, KernelConfig
from pyflash.config.fields import number, tile
from pyflash.config.op import KernelFeatures, Op
from pyflash.config.record import Family
from pyflash.config.resources import Resources, occupancy
from pyflash.config.rules import Rules


@dataclass(frozen=True, order=True, slots=True)
class NegateFeatures(KernelFeatures):
    struct: ClassVar[str] = "NegateFeatures"

    scaled: bool = False
    right_window: bool = False  # of the same name as one of op forward


BUILT = (NegateFeatures(), NegateFeatures(scaled=True))

NEGATE = Op(
    name="negate",
    struct="Negate",
    header="cute_kernels/negate/negate.h",
    features=NegateFeatures,
    built=BUILT,
    emulated=BUILT,
)


@dataclass(frozen=True, slots=True)
class NegateConfig(KernelConfig):
    tag: ClassVar[str] = "negate"

    dtype: DType = tile()
    d_head: int = tile()
    B_r: int = tile()
    B_c: int = tile()
    vector: int = number("vector_{}")

    n_threads = 64
    smem_bytes = 0


RULES = Rules()


@RULES.rule
def vectors(c: NegateConfig, arch: Arch) -> Iterator[str]:
    if c.B_r % c.vector:
        yield f"B_r = {c.B_r} is no multiple of vector = {c.vector}"


def resources(c: NegateConfig, arch: Arch) -> Resources:
    return occupancy(20, c.smem_bytes, n_warps=2, arch=arch)


NEGATING = NegateConfig(DType.FP16, 64, 32, 32, 4)

NEGATE_FAMILY = Family(
    name="sm80_negate",
    op=NEGATE,
    generation=80,
    config_type=NegateConfig,
    rules=RULES,
    resources=resources,
    supported={"d_head": (64,), "B_r": (32,)},
    explored={"B_c": (32,), "vector": (2, 4)},
    sets={"negates": lambda: [NEGATING, NEGATING.replace(vector=2)]},
    ranked=(NEGATING,),
    host_header="cute_kernels/negate/host.h",
    launcher_header="cute_kernels/negate/launcher.h",
    traits_header="cute_kernels/negate/traits.h",
    kernel_header="cute_kernels/negate/kernel.h",
    kernel="negate_kernel",
    mma_warps=lambda config: 2,
    operand_reader="ldmatrix",
    repeats={},
    lacks_swizzle=lambda config: False,
    register_demand=None,
    settled={},
    slowdowns={},
    mma_rate=lambda arch: 1.0,
    ladder=(),
    built_features=lambda config: BUILT,
)
