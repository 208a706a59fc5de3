"""The description of a config's fields, from which all its forms derive.

A config class states each field once, as a dataclass field with its type, default, least value and
place in the short form:

    @dataclass(frozen=True, slots=True)
    class Config(KernelConfig):
        dtype: DType = tile()                              # (FP16, 128): ...
        d_head: int = tile()
        swizzled: bool = flag("swizzled")                  # swizzled, or nothing
        Q_tiles: int = number("load_{Q}_{K}_tiles", least=0)   # neighbours with one form share
        K_tiles: int = number("load_{Q}_{K}_tiles", least=0)   # a word: load_0_2_tiles
        stages: int = number("stages_{}", default=1)       # stages_2; nothing at its default

`describe(Config)` gives the description that short form, JSON, C++ literal and symbol parsing use
here and in `parsing`, and from which `codegen.config_header` emits the C++ struct and its table.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from itertools import groupby
from typing import Any, Final, get_type_hints

from pyflash.config.words import shown

REQUIRED: Final = dataclasses.MISSING  # the default of a field that has none

LARGEST: Final = 2**31 - 1  # that a field of the C++ struct can hold

_KEY = "pyflash.config.fields"


@dataclass(frozen=True, slots=True)
class _Place:
    form: str | None  # of its word; None: in the parenthesis
    least: int
    default: Any


def tile(*, least: int = 1, usual: Any = REQUIRED) -> Any:
    """A field in the parenthesis of the short form: an enumeration or an int of at least `least`.

    It has no default: the parenthesis of a family never changes. `usual` is its value where a call
    of the config type leaves it out; no text may.
    """
    return _field(_Place(None, least, REQUIRED), usual)


def flag(word: str, *, default: Any = REQUIRED) -> Any:
    """A bool that the short form shows as `word` where it is True. The default can be False only:
    a short form without the word must go on meaning what it means. Without a default, C++ literals
    and JSON have to name it, and a call of the config type need not: it is False."""
    if default not in (REQUIRED, False):
        raise TypeError(f"the default of {word!r} must be False, not {default!r}")
    return _field(_Place(word, 0, default), False)


def number(form: str, *, least: int = 1, default: Any = REQUIRED, usual: Any = REQUIRED) -> Any:
    """An int of at least `least` in the word `form`, such as "stages_{}", which the short form
    leaves out where all its fields have their defaults.

    Neighbouring fields of one form share the word, a placeholder each; a placeholder may have a
    name, which error messages show. Without a default every text has it, and a call of the config
    type need not: it is `usual`, or `least`.
    """
    if default is REQUIRED:
        return _field(_Place(form, least, REQUIRED), least if usual is REQUIRED else usual)
    return _field(_Place(form, least, default), default)


def _field(place: _Place, usual: Any) -> Any:
    return dataclasses.field(default=usual, metadata={_KEY: place})


@dataclass(frozen=True, slots=True)
class Field:
    """One field: `kind` is int, bool or an IntEnum. `default` is what a text means that leaves it
    out, `usual` what a call of the config type means; REQUIRED where neither may."""

    name: str
    kind: type
    least: int
    default: Any
    usual: Any

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    def check(self, value: Any) -> None:
        """Raises TypeError or ValueError where the field cannot hold `value`."""
        if type(value) is not self.kind:
            names = [
                f"{self.kind.__name__}.{name}" for name in getattr(self.kind, "__members__", ())
            ]
            expected = f": expected {' or '.join(names)}" if names else ""
            raise TypeError(
                f"{self.name} must be {self.kind.__name__}, not {shown(value)}{expected}"
            )
        if self.kind is int and not self.least <= value <= LARGEST:
            raise ValueError(
                f"{self.name} = {shown(value)}: expected at least {self.least}"
                if value < self.least
                else f"{self.name} = {shown(value)}: expected at most {LARGEST}"
            )

    def value_of(self, text: str) -> Any:
        """The member of an enumeration by its name. Raises ValueError listing the names."""
        if text not in self.kind.__members__:
            names = ", ".join(self.kind.__members__)
            raise ValueError(f"unknown {self.name} {shown(text)}: expected one of {names}")
        return self.kind[text]

    @property
    def is_enum(self) -> bool:
        return issubclass(self.kind, IntEnum)


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the short form and the fields in it: a bool, ints for the placeholders of `form`,
    or none at all, for the word that tells a family."""

    form: str
    fields: tuple[Field, ...] = ()

    @property
    def is_flag(self) -> bool:
        return bool(self.fields) and self.fields[0].kind is bool

    @property
    def required(self) -> bool:
        """Whether every short form has it."""
        return not self.is_flag and all(field.required for field in self.fields)

    @property
    def pieces(self) -> list[str]:
        """The text around the placeholders: one more than these."""
        return re.split(r"\{\w*\}", self.form)

    @property
    def label(self) -> str:
        """The word in messages: load_Q_K_V_tiles, stages_N."""
        return re.sub(r"\{(\w*)\}", lambda m: m[1] or "N", self.form)

    def text(self, config: Any) -> str | None:
        """The word as `config` has it; None where it is left out."""
        values = [getattr(config, field.name) for field in self.fields]
        if self.is_flag:
            return self.form if values[0] else None
        if values and all(v == f.default for v, f in zip(values, self.fields, strict=True)):
            return None
        first, *rest = self.pieces
        return first + "".join(f"{v}{piece}" for v, piece in zip(values, rest, strict=True))

    def parse(self, text: str) -> dict[str, Any] | None:
        """The values in `text`; None where it is another word."""
        match = re.fullmatch("([0-9]+)".join(map(re.escape, self.pieces)), text)
        if not match:
            return None
        if self.is_flag:
            return {self.fields[0].name: True}
        return {f.name: number_in(v) for f, v in zip(self.fields, match.groups(), strict=True)}

    @property
    def absent(self) -> dict[str, Any]:
        """The values of a word that the short form leaves out."""
        return {field.name: False if self.is_flag else field.default for field in self.fields}


@dataclass(frozen=True, slots=True)
class Description:
    """A config type: its name in Python and C++, its fields in order, and their places."""

    struct: str
    fields: Mapping[str, Field]
    tile: tuple[Field, ...]
    words: tuple[Word, ...]  # first, where the family has one, the word that tells it

    @property
    def form(self) -> str:
        """The short form as messages show it: (dtype, d_head): [async+]load_Q_K_tiles[+buffer]."""
        required = [i for i, word in enumerate(self.words) if word.required]
        pivot = required[0] if required else len(self.words)
        text = ""
        for i, word in enumerate(self.words):
            if i < pivot:
                text += f"[{word.label}+]"
            elif i == pivot:
                text += word.label
            else:
                text += f"+{word.label}" if word.required else f"[+{word.label}]"
        return f"({', '.join(field.name for field in self.tile)}): {text}"

    # Text of a config

    def short_form(self, config: Any) -> str:
        values = (getattr(config, field.name) for field in self.tile)
        tile = ", ".join(v.name if isinstance(v, IntEnum) else str(v) for v in values)
        words = (word.text(config) for word in self.words)
        return f"({tile}): {'+'.join(word for word in words if word is not None)}"

    def to_dict(self, config: Any) -> dict[str, Any]:
        """As JSON can hold it: enumerations by name."""
        values = ((name, getattr(config, name)) for name in self.fields)
        return {name: v.name if isinstance(v, IntEnum) else v for name, v in values}

    def to_cpp(self, config: Any) -> str:
        """The C++ literal, with designated initialisers; fields at their defaults are left out."""
        values = ((field, getattr(config, field.name)) for field in self.fields.values())
        initialisers = ", ".join(
            f".{field.name} = {cpp_value(v)}" for field, v in values if v != field.default
        )
        return f"{self.struct}{{{initialisers}}}"


def number_in(digits: str) -> int:
    """Raises ValueError for one that no field can hold, however long."""
    digits = digits.lstrip("0") or "0"
    if len(digits) > len(str(LARGEST)):
        raise ValueError(f"{shown(digits)} is too large: expected at most {LARGEST}")
    return int(digits)


def cpp_value(value: IntEnum | bool | int) -> str:
    if isinstance(value, IntEnum):
        return f"{type(value).__name__}::{value.name}"
    return str(value).lower()


@cache
def describe(config_type: type) -> Description:
    """The description of a config type. Raises TypeError for one that cannot be described."""
    hints = get_type_hints(config_type)
    fields: dict[str, Field] = {}
    places: list[tuple[_Place, Field]] = []
    for item in dataclasses.fields(config_type):
        place = item.metadata.get(_KEY)
        if place is None:
            raise TypeError(f"{config_type.__name__}.{item.name}: use tile(), flag() or number()")
        kind = hints[item.name]
        field = Field(item.name, kind, place.least, place.default, item.default)
        fields[item.name] = field
        places.append((place, field))
    words = [Word(config_type.tag)] if config_type.tag else []
    for form, group in groupby(places, key=lambda at: at[0].form):
        if form is not None:
            words.append(Word(form, tuple(field for _, field in group)))
    for word in words:
        _check(config_type, word)
    return Description(
        struct=config_type.__name__,
        fields=fields,
        tile=tuple(field for place, field in places if place.form is None),
        words=tuple(words),
    )


def _check(config_type: type, word: Word) -> None:
    kinds = {field.kind for field in word.fields}
    n_expected = len(word.fields) if not word.is_flag else 0
    if kinds - {bool, int} or len(kinds) > 1 or len(word.pieces) != n_expected + 1:
        names = ", ".join(field.name for field in word.fields)
        raise TypeError(f"{config_type.__name__}: {word.form!r} does not fit {names}")
    if len({field.required for field in word.fields}) > 1:
        raise TypeError(f"{config_type.__name__}: some fields of {word.form!r} have no default")
