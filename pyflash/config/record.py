"""The record of a kernel family: every fact about it that other rooms ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyflash.config.arch import Arch, Targets, targets
from pyflash.config.fields import Field, describe
from pyflash.config.op import KernelFeatures, Op
from pyflash.config.resources import RegisterDemand, Resources
from pyflash.config.rules import Rules
from pyflash.config.variant_needs import VariantNeeds

if TYPE_CHECKING:
    from pyflash.config.base import DType, KernelConfig


@dataclass(frozen=True, eq=False)
class Family:
    """A kernel family: the kernels of an op that a generation of GPUs brought, with their config
    type, what makes a config legal, and where their C++ is.

    Making the record makes it the family of its config type.
    """

    name: str  # of its folder in pyflash/config
    op: Op
    generation: int  # the sm number of the first GPUs with its instructions, such as 80
    config_type: type[KernelConfig]
    rules: Rules
    resources: Callable[[Any, Arch], Resources]
    # By field, the values that the kernels are written and tested for: others are legal nowhere.
    supported: Mapping[str, Sequence[Any]]
    # By field, the values that a Space takes by default of numbers that are not limited so.
    explored: Mapping[str, Sequence[Any]]
    # The members of a named set, by its name.
    sets: Mapping[str, Callable[[], Iterable[KernelConfig]]]
    # The canonical configs that selection prefers, best first, and the rank of the first of them:
    # smaller than another family's where this one's kernels are to be preferred.
    ranked: Sequence[KernelConfig]
    # Paths to #include, and the name of the __global__ function template. The first two have the
    # overloads for the config type that cute_kernels/ops.h names: what host code asks of a config,
    # and how kernel libraries launch its kernels.
    host_header: str
    launcher_header: str
    traits_header: str
    kernel_header: str  # of the __global__ function alone, for device code without a host's
    kernel: str
    # The warps of a CTA that issue MMAs and so run the main loop: all but producers.
    mma_warps: Callable[[Any], int]
    # The instruction that reads tiles of Q, K and V from shared memory, as reports name it.
    operand_reader: str
    # By tile, what a third mode of its layout in shared memory counts, such as "stages".
    repeats: Mapping[str, str]
    # Whether a config's tiles in shared memory are row-major where they could be swizzled.
    lacks_swizzle: Callable[[Any], bool]
    # The resource model's registers by what they hold; None: it tells only sums.
    register_demand: Callable[[Any], RegisterDemand] | None
    # By field, what has won on every problem measured: tuning searches the other fields.
    settled: Mapping[str, Any]
    # By field and value, the time with it over the time without: it orders what tuning tries before
    # anything is measured. A field that is not here starts even.
    slowdowns: Mapping[str, Mapping[Any, float]]
    # The share of the tensor cores' peak rate that its MMA instructions reach on an architecture.
    mma_rate: Callable[[Arch], float]
    # The steps of the optimisation ladder, each with what it adds.
    ladder: Sequence[tuple[str, KernelConfig]]
    # The combinations of features that a config is built with by default, in the order of dispatch.
    built_features: Callable[[Any], Sequence[KernelFeatures]]
    lacks: frozenset[str] = frozenset()  # features that no kernel of it has
    traits: str = "KernelTraits"  # the template of its compile-time types, in its namespace
    first_rank: int = 0
    emulation_header: str | None = None  # None: the emulator does not run it
    # The header of the __global__ function with a variant; None: its kernels take none.
    variant_header: str | None = None
    gradient_header: str | None = None  # the same of gradients
    variant_launcher: str | None = None  # of rows with either
    # Why a config has no room for a variant of such needs, a sentence; None: it has.
    variant_refusal: Callable[[Any, VariantNeeds], str | None] = lambda config, needs: None
    # The configs that run variants of such needs where none is named, best first; (): the ranked.
    # The bools: whether sequences have FEW_KEYS or fewer, and whether the queries of a head of K
    # and V are FEW_ROWS or fewer.
    for_variants: Callable[[VariantNeeds, bool, bool], Sequence[KernelConfig]] = lambda *asked: ()
    # Its MMAs are asynchronous, and the emulator has to know who touches their registers.
    emulation_watches_registers: bool = False
    # For the targets of one architecture alone, such as sm_90a, whose instructions PTX for newer
    # ones does not have.
    arch_specific: bool = False
    # The sm numbers of the architectures that have its instructions; (): all.
    runs_on: Sequence[int] = ()
    # The config for a (dtype, d_head) that nothing is built for: what the CPU names, and what is
    # proposed for building. None: another family's is.
    fallback: Callable[[DType, int], KernelConfig] | None = None

    def __post_init__(self) -> None:
        self.config_type.family = self

    def __str__(self) -> str:
        return self.name

    @property
    def tag(self) -> str:
        return self.config_type.tag

    @property
    def key(self) -> tuple[int, str]:
        """The key of a family: its generation and its op."""
        return self.generation, self.op.name

    @property
    def namespace(self) -> str:
        """The namespace of its generation, in pyflash."""
        return f"sm{self.generation}"

    @property
    def struct(self) -> str:
        """The name of the config type in C++."""
        return self.config_type.__name__

    def takes_variant(self, config: Any, needs: VariantNeeds) -> bool:
        """Whether kernels of a config of this family take a variant, with registers to spare."""
        return self.variant_header is not None and self.variant_refusal(config, needs) is None

    def builds_variant(self, config: Any, needs: VariantNeeds) -> bool:
        """The same, and whether kernels of gradients do."""
        return self.takes_variant(config, needs) or self.gradient_header is not None

    def nvcc_arch(self, arch: Arch | str | int) -> str:
        """The target that nvcc compiles for `arch`: "90", or "90a" where it has to be that."""
        arch = Arch.of(arch)
        return f"{arch.ptx_of or arch.sm}{self._suffix}"

    def targets(self, archs: Iterable[Arch]) -> Targets:
        """What nvcc compiles for `archs`, on all of which a config of this family is legal."""
        return targets(archs, self._suffix)

    @property
    def _suffix(self) -> str:
        return "a" if self.arch_specific else ""

    def choices(self) -> dict[str, tuple[Any, ...]]:
        """The values of each field in a Space that does not name it: its default where it has one,
        so that a space stays what it was when a field is added; else those supported or explored,
        every member of an enumeration, both of a bool."""
        numbers = {**self.explored, **self.supported}

        def values(field: Field) -> Iterable[Any]:
            if not field.required:
                return (field.default,)
            if field.kind is int:
                return numbers[field.name]
            return (False, True) if field.kind is bool else field.kind

        fields = describe(self.config_type).fields
        return {name: tuple(values(field)) for name, field in fields.items()}
