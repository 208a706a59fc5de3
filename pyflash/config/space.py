"""Spaces of configs that users write:

>>> space = Space(dtype="FP16", d_head=128, B_r=[64, 128], B_c=64).filter(lambda c: c.swizzled)
>>> candidates = list(space.legal("sm_90"))
>>> for config, violations in space.explain("sm_90"):
...     print(config, violations)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from pyflash.config.arch import Arch
from pyflash.config.base import KernelConfig
from pyflash.config.family import FAMILIES, find_family
from pyflash.config.record import Family
from pyflash.config.rules import Violation
from pyflash.config.words import nearest, type_name

Predicate = Callable[[Any], bool]


class Refusal(NamedTuple):
    config: KernelConfig
    violations: list[Violation]


class Space:
    """A cartesian product of field values, filtered; immutable, iterated in ascending order.

    Each field is one value or several, a dtype may be given by its name; a field that is not named
    takes what `Family.choices` gives it. `family` is a family or its name, by default sm80_forward.
    A predicate is called once for each config, at the first iteration or the first `len()` of a
    filtered space. Raises TypeError or ValueError for a field that a config does not have and
    for a value that it cannot hold.
    """

    def __init__(self, *, family: Family | str = FAMILIES[0], **values: Any) -> None:
        self.family = find_family(family)
        config_type = self.family.config_type
        every = self.family.choices()
        if unknown := values.keys() - every.keys():
            raise TypeError(config_type.unknown_fields(unknown))
        self._values = {
            name: config_type.values_of(name, values.get(name, every[name])) for name in every
        }
        self._predicates: tuple[Predicate, ...] = ()
        self._archs: tuple[Arch, ...] = ()  # on which the configs are legal

    def filter(self, predicate: Predicate) -> Space:
        """The configs for which `predicate(config)` is true."""
        if not callable(predicate):
            raise TypeError(f"predicate is {type_name(predicate)}: expected a function of a config")
        return self._with(self._values, predicate)

    def legal(self, arch: Arch | str | int) -> Space:
        """The configs without violations on `arch`. Each rule is asked as soon as the fields that
        it reads are chosen, so that what it refuses is never made."""
        return self._with(self._values, arch=Arch.of(arch))

    def explain(self, arch: Arch | str | int) -> list[Refusal]:
        """The restriction log: each config that `arch` refuses, with every rule it breaks."""
        arch = Arch.of(arch)
        refusals = (Refusal(config, config.violations(arch)) for config in self)
        return [refusal for refusal in refusals if refusal.violations]

    def __iter__(self) -> Iterator[KernelConfig]:
        return iter(self._configs) if self._is_filtered else self._product()

    def __len__(self) -> int:
        return len(self._configs) if self._is_filtered else self._size

    def __repr__(self) -> str:
        """The fields whose values are not those of `Family.choices`, and how many configs."""
        every, texts = self.family.choices(), self.texts()
        named = [
            f"{name}={texts[name]}"
            for name, values in self._values.items()
            if set(values) != set(every[name])
        ]
        n_filters = len(self._predicates)
        filters = [f"{n_filters} filter{'s' * (n_filters > 1)}"] * bool(n_filters)
        filters = [f"legal on {arch}" for arch in self._archs] + filters
        before = f" before: {', '.join(filters)}" if filters else ""
        return f"<Space of {self.family}: {'; '.join([*named, f'{self._size} configs'])}{before}>"

    def texts(self) -> dict[str, str]:
        """The values of each field, as text."""
        return {
            name: ", ".join(getattr(value, "name", str(value)) for value in values)
            for name, values in self._values.items()
        }

    @property
    def _size(self) -> int:
        return math.prod(map(len, self._values.values()))

    def _product(self) -> Iterator[KernelConfig]:
        return self.family.config_type.product(**self._values)

    @property
    def _is_filtered(self) -> bool:
        return bool(self._predicates or self._archs)

    @cached_property
    def _configs(self) -> list[KernelConfig]:
        candidates = self._legal_product() if self._archs else self._product()
        return [c for c in candidates if all(holds(c) for holds in self._predicates)]

    def _legal_product(self) -> Iterator[KernelConfig]:
        """The product without configs that break rules, field by field."""
        rules = self.family.rules
        asked = [(arch, (*rules.supports, *rules.rules)) for arch in self._archs]
        config_type = self.family.config_type
        partial = object.__new__(config_type)
        # Those of one value first: rules then know them, and the order stays that of the fields.
        names = sorted(self._values, key=lambda name: len(self._values[name]) > 1)

        def choose(i: int, asked: list[Any]) -> Iterator[KernelConfig]:
            if i == len(names):
                for arch, undecided in asked:
                    for rule in undecided:
                        list(rule(partial, arch))  # raises an AttributeError that names no field
                yield config_type(**{name: getattr(partial, name) for name in self._values})
                return
            for value in self._values[names[i]]:
                object.__setattr__(partial, names[i], value)
                left = [(arch, rules.undecided(partial, arch, those)) for arch, those in asked]
                if all(those is not None for _, those in left):
                    yield from choose(i + 1, left)
            object.__delattr__(partial, names[i])

        return choose(0, asked)

    def _with(
        self,
        values: dict[str, tuple[Any, ...]],
        predicate: Predicate | None = None,
        arch: Arch | None = None,
    ) -> Space:
        space = Space(family=self.family, **values)
        space._predicates = self._predicates + ((predicate,) if predicate else ())
        space._archs = self._archs + ((arch,) if arch else ())
        return space


_FORM = "'sm90_forward d_head=128 B_c=64,128 overlap=true'"


def parse_space(text: str) -> Space:
    """A family, if it is not the first one, and FIELD=VALUE,VALUE... for the fields that are not to
    take all their values, separated by blanks or commas. Raises ValueError naming the word that was
    not understood."""
    words = re.split(r"\s*,\s*(?=\w+=)|\s+", text.strip()) if text.strip() else []
    family = FAMILIES[0]
    if words and "=" not in words[0]:
        family = find_family(words.pop(0))
    kinds = family.config_type.field_types()
    values: dict[str, list[Any]] = {}
    for word in words:
        name, _, listed = word.partition("=")
        if name not in kinds or not listed:
            raise ValueError(
                f"unknown word {word!r} in space {text!r}"
                f"{'' if name in kinds else nearest(name, kinds)}: expected FIELD=VALUE,VALUE with "
                f"a field of {family}, {', '.join(kinds)}; for instance {_FORM}"
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
