"""From text that comes from outside (profilers, logs, people) to the fields of a config."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any

from pyflash.config.fields import Description, Field

_SHORT_FORM = re.compile(r"\(([^()]*)\)\s*:\s*(\S.*)", re.DOTALL)
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
        raise ValueError(f"{other[1]} is not {description.struct} in {text!r}")
    return _parse_short_form(_first_cell(text), description)


def names_struct(text: str, struct: str) -> bool:
    return re.search(rf"\b{struct}\b", text) is not None


def first_word(text: str) -> str:
    """The first word of a short form, alone or as the first cell of a table row; "" without."""
    match = _SHORT_FORM.fullmatch(_first_cell(text))
    return match[2].split("+")[0].strip() if match else ""


def _first_cell(text: str) -> str:
    return text.strip().removeprefix("|").split("|")[0].strip()


# C++


def _parse_struct(text: str, description: Description) -> dict[str, Any]:
    name = description.struct
    struct = re.search(rf"\b{name}\)?\s*\{{([^{{}}]*)\}}", text)
    if not struct:
        raise ValueError(f"no {name}{{...}} with its closing brace in {text!r}")
    items = [item.strip() for item in struct[1].split(",")]
    fields = list(description.fields.values())
    if items[0].startswith("."):
        return _parse_designated(items, fields, struct[0])
    n_required = sum(field.required for field in fields)
    if not n_required <= len(items) <= len(fields):
        expected = f"{n_required} to {len(fields)}" if n_required < len(fields) else len(fields)
        raise ValueError(f"{struct[0]!r} has {len(items)} values, expected {expected}")
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
                raise ValueError(f".{field.name} is missing in {struct!r}")
            raise ValueError(f"{item!r} stands where .{field.name} was expected")
    if item:
        raise ValueError(f"{item!r} is unknown, repeated or out of order in {struct!r}")
    return values


def _cpp_value(item: str, value: str, field: Field) -> Any:
    if field.is_enum:
        return _cpp_enumerator(item, value, field)
    match = _CPP_VALUES[field.kind].fullmatch(value)
    if not match:
        raise _not_a_value(item, field)
    return match[1] in ("1", "true") if field.kind is bool else int(match[1])


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
    if int(match[1]) not in known:
        numbers = ", ".join(f"{number} ({known[number].name})" for number in known)
        raise ValueError(f"unknown {field.name} {match[1]!r}: expected one of {numbers}")
    return known[int(match[1])]


def _not_a_value(item: str, field: Field) -> ValueError:
    return ValueError(f"{item!r} is not a value of {field.name}, which is {field.kind.__name__}")


# The short form


def _parse_short_form(cell: str, description: Description) -> dict[str, Any]:
    match = _SHORT_FORM.fullmatch(cell)
    if not match:
        raise ValueError(
            f"{cell!r} is not a {description.struct}: expected the form {description.form!r}"
        )
    fields = description.tile
    values = [value.strip() for value in match[1].split(",")]
    if len(values) != len(fields):
        names = ", ".join(field.name for field in fields)
        raise ValueError(
            f"({match[1]}) has {len(values)} values, expected {len(fields)}: ({names})"
        )
    tile = {
        field.name: _tile_value(value, field, cell)
        for value, field in zip(values, fields, strict=True)
    }
    return tile | _parse_words(match[2], description)


def _tile_value(text: str, field: Field, cell: str) -> Any:
    if field.is_enum:
        return field.value_of(text)
    if not re.fullmatch(r"[0-9]+", text):
        raise ValueError(f"{field.name} is {text!r} in {cell!r}: expected a number")
    return int(text)


def _parse_words(text: str, description: Description) -> dict[str, Any]:
    words = description.words
    order = "+".join(word.label for word in words)
    values: dict[str, Any] = {}
    expected = 0  # the first word that may come next
    for item in (item.strip() for item in text.split("+")):
        position, parsed = next(
            ((i, found) for i, w in enumerate(words) if (found := w.parse(item)) is not None),
            (None, {}),
        )
        if position is None:
            raise ValueError(
                f"unknown word {item!r} in {text!r}: the words of {description.struct} are {order}"
            )
        label = words[position].label
        if position < expected:
            raise ValueError(f"{label!r} is repeated or out of order in {text!r}: write {order}")
        values |= _left_out(words[expected:position], text) | parsed
        expected = position + 1
    return values | _left_out(words[expected:], text)


def _left_out(words: Any, text: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for word in words:
        if word.required:
            raise ValueError(f"{word.label} is missing in {text!r}")
        values |= word.absent
    return values
