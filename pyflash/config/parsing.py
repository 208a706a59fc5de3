"""From text that comes from outside (profilers, logs, people) to the fields of a config."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from pyflash.config.fields import Description, Field, Word, number_in
from pyflash.config.words import nearest, shown

# Around the tokens of a short form; cute_kernels/host/short_form.cpp has the same.
_BLANKS = " \t\r\n"
_SHORT_FORM = re.compile(rf"\(([^()]*)\)[{_BLANKS}]*:(.*)", re.DOTALL)
_ANY_STRUCT = re.compile(r"\b(\w*Config)\)?\s*\{")

# A value of a C++ initialiser, by the type of its field.
_SCOPE = r"(?:\w*::)*"
_CPP_VALUES = {
    int: re.compile(r"(?:\(int\))?([0-9]+)"),
    bool: re.compile(r"(?:\(bool\))?(0|1|false|true)"),
}


def parse_fields(text: str, description: Description) -> dict[str, Any]:
    """The fields of the config that `text` names, as keyword arguments.

    Fields that the text leaves out are left out here too, or have their defaults. Raises
    ValueError naming the offending text.
    """
    if names_struct(text, description.struct):
        return _parse_struct(text, description)
    if other := _ANY_STRUCT.search(text):
        raise ValueError(f"{other[1][:100]} is not {description.struct} in {shown(text)}")
    return parse_short_form(first_cell(text), description)


def names_struct(text: str, struct: str) -> bool:
    return re.search(rf"\b{struct}\b", text) is not None


def first_word(text: str) -> str:
    """The first word of a short form; "" without."""
    match = _SHORT_FORM.fullmatch(text.strip(_BLANKS))
    return match[2].split("+")[0].strip(_BLANKS) if match else ""


def first_cell(text: str) -> str:
    """The first cell of a `|` table row; all of any other text."""
    return text.strip(_BLANKS).removeprefix("|").split("|")[0]


# C++


def _parse_struct(text: str, description: Description) -> dict[str, Any]:
    name = description.struct
    struct = re.search(rf"\b{name}\)?\s*\{{([^{{}}]*)\}}", text)
    if not struct:
        raise ValueError(f"no {name}{{...}} with its closing brace in {shown(text)}")
    items = [item.strip() for item in struct[1].split(",")]
    fields = list(description.fields.values())
    if items[0].startswith("."):
        return _parse_designated(items, fields, struct[0])
    n_required = sum(field.required for field in fields)
    if not n_required <= len(items) <= len(fields):
        expected = f"{n_required} to {len(fields)}" if n_required < len(fields) else len(fields)
        raise ValueError(f"{shown(struct[0])} has {len(items)} values, expected {expected}")
    return {
        field.name: _cpp_value(item, item, field)
        for item, field in zip(items, fields, strict=False)
    }


def _parse_designated(items: list[str], fields: list[Field], struct: str) -> dict[str, Any]:
    """`.name = value` each, in order; fields with defaults may be missing."""
    values = {}
    rest = iter(items)
    item = next(rest)
    for field in fields:
        designator, _, value = (part.strip() for part in item.partition("="))
        if designator == f".{field.name}":
            values[field.name] = _cpp_value(item, value, field)
            item = next(rest, "")
        elif field.required:
            if not item:
                raise ValueError(f".{field.name} is missing in {shown(struct)}")
            raise ValueError(f"{shown(item)} stands where .{field.name} was expected")
    if item:
        raise ValueError(f"{shown(item)} is unknown, repeated or out of order in {shown(struct)}")
    return values


def _cpp_value(item: str, value: str, field: Field) -> Any:
    if field.is_enum:
        return _cpp_enumerator(item, value, field)
    match = _CPP_VALUES[field.kind].fullmatch(value)
    if not match:
        raise _not_a_value(item, field)
    return match[1] in ("1", "true") if field.kind is bool else number_in(match[1])


def _cpp_enumerator(item: str, value: str, field: Field) -> IntEnum:
    enum = field.kind.__name__
    match = re.fullmatch(
        rf"(?:\({_SCOPE}(?:{enum}|ScalarType)\))?([0-9]+)|{_SCOPE}{enum}::(?P<name>\w+)", value
    )
    if not match:
        raise _not_a_value(item, field)
    if match["name"]:
        return field.value_of(match["name"])
    known = {int(member): member for member in field.kind}
    number = number_in(match[1])
    if number not in known:
        numbers = ", ".join(f"{number} ({known[number].name})" for number in known)
        raise ValueError(f"unknown {field.name} {match[1]!r}: expected one of {numbers}")
    return known[number]


def _not_a_value(item: str, field: Field) -> ValueError:
    return ValueError(
        f"{shown(item)} is not a value of {field.name}, which is {field.kind.__name__}"
    )


# The short form


def _order(words: Iterable[Word]) -> str:
    return "+".join(word.label for word in words)


class UnknownWordError(ValueError):
    """A short form has a word that its family does not."""

    def __init__(self, word: str, text: str, description: Description) -> None:
        known = [known.label for known in description.words]
        super().__init__(
            f"unknown word {shown(word)} in {shown(text)}{nearest(word, known)}: the words of "
            f"{description.struct} are {_order(description.words)}"
        )
        self.word = word


def is_short_form(text: str) -> bool:
    """Whether it looks like one of some family."""
    return _SHORT_FORM.fullmatch(text.strip(_BLANKS)) is not None


def parse_short_form(text: str, description: Description) -> dict[str, Any]:
    """The fields of a short form, and of no other text. Accepts what the op library accepts: blanks
    around tokens, fields with defaults left out. Raises ValueError naming the offending text."""
    match = _SHORT_FORM.fullmatch(text.strip(_BLANKS))
    if not match:
        raise ValueError(
            f"{shown(text)} is not a {description.struct}: expected the form {description.form!r}"
        )
    fields = description.tile
    values = [value.strip(_BLANKS) for value in match[1].split(",")]
    if len(values) != len(fields):
        names = ", ".join(field.name for field in fields)
        raise ValueError(
            f"{shown(f'({match[1]})')} has {len(values)} values, expected {len(fields)}: ({names})"
        )
    tile = {
        field.name: _tile_value(value, field, text)
        for value, field in zip(values, fields, strict=True)
    }
    return tile | _parse_words(match[2], description)


def _tile_value(value: str, field: Field, text: str) -> Any:
    if field.is_enum:
        return field.value_of(value)
    if not re.fullmatch(r"[0-9]+", value):
        raise ValueError(f"{field.name} is {shown(value)} in {shown(text)}: expected a number")
    return number_in(value)


def _parse_words(text: str, description: Description) -> dict[str, Any]:
    words = description.words
    values: dict[str, Any] = {}
    expected = 0  # the first word that may come next
    # All of them first: a word of another family is the reason why others are missing.
    for position, parsed in [_known_word(item, text, description) for item in text.split("+")]:
        label = words[position].label
        if position < expected:
            raise ValueError(
                f"{label!r} is repeated or out of order in {shown(text)}: write {_order(words)}"
            )
        values |= _left_out(words[expected:position], text) | parsed
        expected = position + 1
    return values | _left_out(words[expected:], text)


def _known_word(item: str, text: str, description: Description) -> tuple[int, dict[str, Any]]:
    """The place of a word among those of the family, and its values."""
    item = item.strip(_BLANKS)
    for i, word in enumerate(description.words):
        if (found := word.parse(item)) is not None:
            return i, found
    raise UnknownWordError(item, text, description)


def _left_out(words: Any, text: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for word in words:
        if word.required:
            raise ValueError(f"{word.label} is missing in {shown(text)}")
        values |= word.absent
    return values
