"""Spaces of configs that users write:

>>> space = Space(dtype="FP16", d_head=128, B_r=[64, 128], B_c=64).filter(lambda c: c.swizzled)
>>> candidates = list(space.legal("sm_90"))
>>> for config, violations in space.explain("sm_90"):
...     print(config, violations)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from pyflash.config.arch import Arch
from pyflash.config.base import Family, KernelConfig
from pyflash.config.family import FAMILIES, find_family
from pyflash.config.rules import Violation

Predicate = Callable[[Any], bool]


class Refusal(NamedTuple):
    config: KernelConfig
    violations: list[Violation]


class Space:
    """A cartesian product of field values, filtered; immutable, iterated in ascending order.

    Each field is one value or several, a dtype may be given by its name; a field that is not named
    takes what `Family.choices` gives it. `family` is a family or its name, by default sm80_forward.
    Predicates are called once for each config, when the space is first iterated or, if it is
    filtered, measured. Raises TypeError or ValueError for a field that a config does not have and
    for a value that it cannot hold.
    """

    def __init__(self, *, family: Family | str = FAMILIES[0], **values: Any) -> None:
        self.family = find_family(family)
        config_type = self.family.config_type
        every = self.family.choices()
        if unknown := values.keys() - every.keys():
            names = ", ".join(every)
            raise TypeError(f"unknown fields {sorted(unknown)}: a config has {names}")
        self._values = {
            name: config_type.values_of(name, values.get(name, every[name])) for name in every
        }
        self._predicates: tuple[Predicate, ...] = ()

    def filter(self, predicate: Predicate) -> Space:
        return self._with(self._values, predicate)

    def legal(self, arch: Arch | str | int) -> Space:
        """The configs without violations on `arch`."""
        arch = Arch.of(arch)
        supported = self.family.supported
        values = {
            name: tuple(v for v in values if v in supported.get(name, values))
            for name, values in self._values.items()
        }
        return self._with(values, lambda config: config.is_legal(arch))

    def explain(self, arch: Arch | str | int) -> list[Refusal]:
        """The restriction log: each config that `arch` refuses, with every rule it breaks."""
        arch = Arch.of(arch)
        refusals = (Refusal(config, config.violations(arch)) for config in self)
        return [refusal for refusal in refusals if refusal.violations]

    def __iter__(self) -> Iterator[KernelConfig]:
        return iter(self._configs) if self._predicates else self._product()

    def __len__(self) -> int:
        return len(self._configs) if self._predicates else self._size

    def __repr__(self) -> str:
        """The fields whose values are not those of `Family.choices`, and how many configs."""
        every = self.family.choices()
        named = [
            f"{name}={', '.join(getattr(v, 'name', str(v)) for v in values)}"
            for name, values in self._values.items()
            if set(values) != set(every[name])
        ]
        n_filters = len(self._predicates)
        filters = f" before {n_filters} filter{'s' * (n_filters > 1)}" if n_filters else ""
        return f"<Space of {self.family}: {'; '.join([*named, f'{self._size} configs'])}{filters}>"

    def _repr_html_(self) -> str:
        """In a notebook, the values of each field. Imported then: spaces need no tools."""
        from pyflash.inspect.html import notebook, table_html
        from pyflash.inspect.tables import Table

        texts = {
            name: ", ".join(getattr(value, "name", str(value)) for value in values)
            for name, values in self._values.items()
        }
        return notebook(table_html(Table.of_pairs("space", texts, repr(self))))

    @property
    def _size(self) -> int:
        return math.prod(map(len, self._values.values()))

    def _product(self) -> Iterator[KernelConfig]:
        return self.family.config_type.product(**self._values)

    @cached_property
    def _configs(self) -> list[KernelConfig]:
        return [c for c in self._product() if all(holds(c) for holds in self._predicates)]

    def _with(self, values: dict[str, tuple[Any, ...]], predicate: Predicate) -> Space:
        space = Space(family=self.family, **values)
        space._predicates = (*self._predicates, predicate)
        return space


_FORM = "'sm90_forward d_head=128 B_c=64,128 overlap=true'"


def parse_space(text: str) -> Space:
    """A family, if it is not the first one, and FIELD=VALUE,VALUE... for the fields that are not to
    take all their values. Raises ValueError naming the word that was not understood."""
    words = text.split()
    family = FAMILIES[0]
    if words and "=" not in words[0]:
        family = find_family(words.pop(0))
    kinds = family.config_type.field_types()
    values: dict[str, list[Any]] = {}
    for word in words:
        name, _, listed = word.partition("=")
        if name not in kinds or not listed:
            raise ValueError(
                f"unknown word {word!r} in space {text!r}: expected FIELD=VALUE,VALUE with a field "
                f"of {family}, {', '.join(kinds)}; for instance {_FORM}"
            )
        if name in values:
            raise ValueError(f"{word!r} in space {text!r}: {name} is given twice")
        values[name] = [_value(word, value, kinds[name]) for value in listed.split(",")]
    return Space(family=family, **values)


def _value(word: str, text: str, kind: type) -> object:
    try:
        if kind is bool:
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        return int(text) if kind is int else kind[text.upper()]
    except (KeyError, ValueError):
        names = {bool: "true or false", int: "a number"}
        expected = names.get(kind) or f"one of {', '.join(kind.__members__)}"
        raise ValueError(f"{word!r}: {text!r} is not {expected}") from None
