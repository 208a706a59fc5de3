"""The kernel families, and the questions that all of them answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyflash.config import parsing
from pyflash.config.base import KernelConfig
from pyflash.config.fields import describe
from pyflash.config.op import KernelFeatures, Op
from pyflash.config.record import Family
from pyflash.config.sm80_backward import SM80_BACKWARD
from pyflash.config.sm80_forward import SM80_FORWARD
from pyflash.config.sm90_backward import SM90_BACKWARD
from pyflash.config.sm90_forward import SM90_FORWARD
from pyflash.config.words import shown, type_name


def _in_order(*families: Family) -> tuple[Family, ...]:
    """Raises ValueError where two are of one generation for one op, or have one tag."""
    for facts in ([f.key for f in families], [f.tag for f in families]):
        if len(set(facts)) < len(facts):
            raise ValueError(f"two families are the same: {facts}")
    return tuple(sorted(families, key=lambda family: family.tag))


# In the order of their configs, which is that of the tags; the first has none.
FAMILIES = _in_order(SM80_FORWARD, SM80_BACKWARD, SM90_FORWARD, SM90_BACKWARD)
# Each op of the families, once.
OPS: tuple[Op, ...] = tuple(dict.fromkeys(family.op for family in FAMILIES))


def family_of(config: KernelConfig | type[KernelConfig] | str) -> Family:
    """The family of a config, of a config type, or of the config that a text names.

    Raises ValueError for a text that is no config.
    """
    return (parse(config) if isinstance(config, str) else config).family


def find_family(family: Family | str) -> Family:
    """The family meant by itself, its name ("sm80_forward"), its tag ("" for the same one) or its
    config type in C++. Raises ValueError, listing the names, for any other."""
    for known in FAMILIES:
        if family in (known, known.name, known.tag, known.struct):
            return known
    names = ", ".join(known.name for known in FAMILIES)
    if not isinstance(family, str | Family):
        raise TypeError(f"family is {type_name(family)}: expected a Family or one of {names}")
    raise ValueError(f"unknown family {shown(family)}: the known ones are {names}")


def find_features(text: str) -> KernelFeatures:
    """The features that `text` names, of the first op that has them all; another op's `of` takes
    them by name. Raises ValueError naming the offending text."""
    refusals = []
    for op in OPS:
        try:
            return op.features.parse(text)
        except ValueError as error:
            refusals.append(error)
    raise refusals[0]


def parse(text: str) -> KernelConfig:
    """The config, of any family, that `text` names: a short form (alone, or the first cell of a `|`
    table row), a demangled kernel symbol as nvcc, cu++filt and ncu print it, or a C++ literal.

    Raises ValueError naming the offending text, TypeError for what is no text.
    """
    if not isinstance(text, str):
        raise TypeError(f"config is {type_name(text)}: expected text")
    for family in FAMILIES:
        if parsing.names_struct(text, family.struct):
            return family.config_type.parse(text)
    config_type = _family_of_short_form(parsing.first_cell(text)).config_type
    with _hinting_at_others(config_type):
        return config_type.parse(text)


def parse_short_form(text: str) -> KernelConfig:
    """The config, of any family, of a short form: what the op takes, and nothing else.

    Raises ValueError naming the offending text.
    """
    config_type = _family_of_short_form(text).config_type
    with _hinting_at_others(config_type):
        return config_type(**parsing.parse_short_form(text, describe(config_type)))


def as_config(config: KernelConfig | str) -> KernelConfig:
    """The config itself, or the one that a text names. Raises ValueError naming the text, TypeError
    for another type."""
    if isinstance(config, KernelConfig):
        return config
    if not isinstance(config, str):
        raise TypeError(f"config is {type_name(config)}: expected a KernelConfig or text")
    return parse(config)


def from_dict(values: Mapping[str, Any]) -> KernelConfig:
    """The config, of any family, that `to_dict` gave `values` for, in this or an older version.

    Raises ValueError for an unknown family or dtype, TypeError for unknown or missing fields.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"config is {type_name(values)}: expected a dictionary")
    return find_family(values.get("family", "")).config_type.from_dict(values)


@contextmanager
def _hinting_at_others(config_type: type[KernelConfig]) -> Iterator[None]:
    """Where a word is unknown that another family has, says which, and its form."""
    try:
        yield
    except parsing.UnknownWordError as error:
        others = (describe(f.config_type) for f in FAMILIES if f.config_type is not config_type)
        hints = [
            f"; {shown(error.word)} is a word of {other.struct}, whose form is {other.form}"
            for other in others
            if any(word.parse(error.word) is not None for word in other.words)
        ]
        raise ValueError(f"{error}{''.join(hints)}") from None


def _family_of_short_form(text: str) -> Family:
    """The family whose tag comes first, or the one without a tag, whose own word does. Raises
    ValueError for what is no short form, with the form of the family whose tag is in it."""
    if not parsing.is_short_form(text):
        words = re.findall(r"\w+", text)
        meant = next((f for f in FAMILIES if f.tag in words), FAMILIES[0])
        others = " or ".join(family.struct for family in FAMILIES if family is not meant)
        raise ValueError(
            f"{shown(text)} is no config: expected the form of {meant.struct}, "
            f"{describe(meant.config_type).form!r}, or that of {others}"
        )
    word = parsing.first_word(text)
    family = next((f for f in FAMILIES if f.tag == word), FAMILIES[0])
    own = describe(family.config_type).words
    if word and all(one.parse(word) is None for one in own):
        tags = " or ".join(f.tag for f in FAMILIES if f.tag)
        raise ValueError(
            f"unknown word {shown(word)} in {shown(text)}: the words of {family.struct} are "
            f"{'+'.join(one.label for one in own)}; those of other families start with {tags}"
        )
    return family
