"""The base of the config types of all kernel families."""

from __future__ import annotations

import dataclasses
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from functools import total_ordering
from typing import TYPE_CHECKING, Any, ClassVar

from pyflash.config import parsing
from pyflash.config.arch import ARCHS, Arch
from pyflash.config.fields import REQUIRED, describe
from pyflash.config.record import Family
from pyflash.config.resources import Resources
from pyflash.config.rules import Violation
from pyflash.config.words import nearest, shown, type_name

if TYPE_CHECKING:
    from typing_extensions import Self

    from pyflash.config.op import KernelFeatures


class DType(IntEnum):
    """Element type of Q, K, V and O, numbered as c10::ScalarType numbers them."""

    FP16 = 5
    BF16 = 15

    @classmethod
    def of(cls, dtype: DType | str | int) -> DType:
        """The type of a `DType`, its name or its number. Raises ValueError for any other, TypeError
        for another type."""
        names = ", ".join(f"{member.name} ({int(member)})" for member in cls)
        if isinstance(dtype, bool) or not isinstance(dtype, str | int):
            raise TypeError(f"dtype is {type_name(dtype)}: expected one of {names}")
        if isinstance(dtype, str):
            if dtype in cls.__members__:
                return cls[dtype]
        elif dtype in tuple(cls):
            return cls(dtype)
        raise ValueError(f"unknown dtype {shown(dtype)}: expected one of {names}")


@total_ordering
class KernelConfig(ABC):
    """A kernel as a value: the base of each family's config type.

    A config type is a `@dataclass(frozen=True, slots=True)` whose fields are described by
    `tile()`, `flag()` and `number()` of `pyflash.config.fields`. It has at least the fields dtype,
    d_head (head dimension), B_r (Q rows per CTA) and B_c (K/V rows per block). These four have to
    be given; the others have usual values.

    A wrong type raises TypeError, a number below its least value ValueError. Any other value can be
    written down; whether it can be built and launched is what `violations` tells. Configs are
    ordered lexicographically, field by field; those of different families by their tags.
    """

    __slots__ = ()

    tag: ClassVar[str] = ""  # the family's word in short forms, such as "sm90"
    family: ClassVar[Family]  # set by the family's record

    dtype: DType
    d_head: int
    B_r: int
    B_c: int

    def __new__(cls, *args: Any, **values: Any) -> Self:
        if unknown := values.keys() - describe(cls).fields.keys():
            raise TypeError(cls.unknown_fields(unknown))
        return object.__new__(cls)

    @classmethod
    def unknown_fields(cls, names: Iterable[str]) -> str:
        """What a TypeError says of fields that the type does not have: the nearest one that it has,
        or whose they are."""
        own = describe(cls).fields
        others = [t for t in KernelConfig.__subclasses__() if t is not cls and "family" in vars(t)]
        sentences = []
        for name in sorted(names):
            owners = [t.__name__ for t in others if name in describe(t).fields]
            hint = nearest(name, own)
            if not hint and owners:
                hint = f", which is one of {' and '.join(owners)}"
            sentences.append(f"{cls.__name__} has no field {name!r}{hint}")
        return f"{'; '.join(sentences)}; its fields are {', '.join(own)}"

    def __post_init__(self) -> None:
        for name, field in describe(type(self)).fields.items():
            field.check(getattr(self, name))

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, KernelConfig):
            return NotImplemented
        return self._order() < other._order()

    def _order(self) -> tuple[Any, ...]:
        return (self.tag, *(getattr(self, name) for name in describe(type(self)).fields))

    # Text

    def short_form(self) -> str:
        """The name in files, logs and tables, and the op's `config` argument."""
        return describe(type(self)).short_form(self)

    def __str__(self) -> str:
        return self.short_form()

    @classmethod
    def parse(cls, text: str) -> Self:
        """The config named by a short form (alone, or the first cell of a `|` table row), by a
        demangled kernel symbol as nvcc, cu++filt and ncu print it, or by `to_cpp_struct()`.

        Fields with defaults may be missing. Raises ValueError naming the offending text, also for
        the config of another family; `pyflash.config.parse` reads those of all.
        """
        return cls(**parsing.parse_fields(text, describe(cls)))

    def to_cpp_struct(self) -> str:
        """The C++ literal, with designated initialisers; fields at their defaults are left out."""
        return describe(type(self)).to_cpp(self)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON can hold them: dtype by name; with "family", the tag, where the family
        has one. `from_dict` is the inverse."""
        return describe(type(self)).to_dict(self) | ({"family": self.tag} if self.tag else {})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The config of such a dictionary, where fields with defaults may be missing.

        Raises ValueError for an unknown dtype or the dictionary of another family, TypeError for
        unknown or missing fields.
        """
        values = dict(values)
        if (tag := values.pop("family", "")) != cls.tag:
            raise ValueError(f"family {tag!r} is not that of {cls.__name__}, {cls.tag!r}")
        fields = describe(cls).fields
        if missing := [name for name, f in fields.items() if f.required and name not in values]:
            raise TypeError(f"{cls.__name__}: missing fields {missing}")
        for name, field in fields.items():
            if field.is_enum and name in values:
                values[name] = field.value_of(values[name])
        return cls(**values)

    def replace(self, **changes: Any) -> Self:
        return dataclasses.replace(self, **changes)

    # Spaces

    @classmethod
    def field_types(cls) -> dict[str, type]:
        """The type of each field, in order."""
        return {name: field.kind for name, field in describe(cls).fields.items()}

    @classmethod
    def values_of(cls, name: str, values: Any) -> tuple[Any, ...]:
        """One value or several of field `name`, ascending, without repetitions; members of
        enumerations also by name. Raises TypeError or ValueError for what no config can hold."""
        field = describe(cls).fields[name]
        if isinstance(values, str) or not isinstance(values, Iterable):
            values = (values,)
        if field.is_enum:
            values = [field.kind.__members__.get(v, v) if isinstance(v, str) else v for v in values]
        values = list(values)
        for value in values:
            field.check(value)
        return tuple(sorted(set(values)))

    @classmethod
    def product(cls, **values: Any) -> Iterator[Self]:
        """The cartesian product of the values of every field, one or several each, ascending; a
        field that a call of the type need not name need not be named here.

        Raises TypeError where a field is unknown or missing.
        """
        fields = describe(cls).fields
        if unknown := values.keys() - fields.keys():
            raise TypeError(cls.unknown_fields(unknown))
        values = {name: f.usual for name, f in fields.items() if f.usual is not REQUIRED} | values
        if missing := [name for name in fields if name not in values]:
            raise TypeError(f"{cls.__name__}: missing fields {missing}")
        of_each = (cls.values_of(name, values[name]) for name in fields)
        return itertools.starmap(cls, itertools.product(*of_each))

    # Legality

    def violations(self, arch: Arch | str | int) -> list[Violation]:
        """The broken rules as (rule, sentence); [] means it can be built and launched on `arch`."""
        return self.family.rules.violations(self, Arch.of(arch))

    def is_legal(self, arch: Arch | str | int) -> bool:
        """Whether `violations(arch)` is empty; stops at the first broken rule."""
        return self.family.rules.are_kept(self, Arch.of(arch))

    def warnings(self, arch: Arch | str | int) -> list[Violation]:
        """What is legal on `arch` but likely slow, such as a predicted register spill."""
        return self.family.rules.warnings(self, Arch.of(arch))

    def canonical(self) -> Self:
        """The one config that stands for all that compile to the same kernel as this one. Legal
        exactly where `self` is legal."""
        return self

    # Resources

    @property
    @abstractmethod
    def n_threads(self) -> int:
        """Per CTA."""

    @property
    @abstractmethod
    def smem_bytes(self) -> int:
        """Dynamic shared memory per CTA."""

    def smem_bytes_with(self, features: KernelFeatures) -> int:
        """That of a kernel with these features."""
        return self.smem_bytes

    def resources(self, arch: Arch | str | int) -> Resources:
        """Registers, shared memory and occupancy on `arch`, as the resource model predicts them."""
        return self.family.resources(self, Arch.of(arch))

    def num_ctas_per_sm(self, arch: Arch | str | int) -> int:
        """CTAs resident on one SM by the resource model, as in __launch_bounds__."""
        return self.resources(arch).num_ctas_per_sm

    def ctas_table(self) -> list[tuple[int, int]]:
        """(sm, CTAs per SM) of each known architecture, ascending; 0 CTAs where it is not legal."""
        return [
            (arch.sm, self.num_ctas_per_sm(arch) if self.is_legal(arch) else 0) for arch in ARCHS
        ]
