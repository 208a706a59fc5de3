"""From text that comes from outside (profilers, logs, people) to the fields of a config."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any

EXAMPLE = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"

_STRUCT = re.compile(r"FlashForwardKernelConfig\)?\s*\{([^{}]*)\}")
_SHORT_FORM = re.compile(r"\(([^()]*)\)\s*:\s*(\S.*)", re.DOTALL)
_LOADS = re.compile(r"load_([0-9]+)_([0-9]+)_([0-9]+)_tiles")
_WORDS = ("async", "eager", "swizzled", "load_Q_K_V_tiles", "buffer", "opt_softmax")

# A value of a C++ initialiser, by the type of its field.
_SCOPE = r"(?:\w*::)*"
_CPP_VALUES = {
    int: re.compile(r"(?:\(int\))?([0-9]+)"),
    bool: re.compile(r"(?:\(bool\))?(0|1|false|true)"),
    IntEnum: re.compile(
        rf"(?:\({_SCOPE}(?:DType|ScalarType)\))?([0-9]+)|{_SCOPE}DType::(?P<enumerator>\w+)"
    ),
}


def parse_fields(text: str, fields: dict[str, type]) -> dict[str, Any]:
    """The fields of the config that `text` names, as keyword arguments.

    `fields` gives the type of each, in order. Raises ValueError naming the offending text.
    """
    if "FlashForwardKernelConfig" in text:
        return _parse_struct(text, fields)
    cell = text.strip().removeprefix("|").split("|")[0].strip()
    return _parse_short_form(cell, fields)


def _parse_struct(text: str, fields: dict[str, type]) -> dict[str, Any]:
    struct = _STRUCT.search(text)
    if not struct:
        raise ValueError(f"no FlashForwardKernelConfig{{...}} with its closing brace in {text!r}")
    items = [item.strip() for item in struct[1].split(",")]
    if len(items) == len(fields) - 1:
        items.append("1")
    if len(items) != len(fields):
        raise ValueError(f"{struct[0]!r} has {len(items)} values, expected {len(fields)}")
    return {
        name: _cpp_value(item, name, kind)
        for item, (name, kind) in zip(items, fields.items(), strict=True)
    }


def _cpp_value(item: str, name: str, kind: type) -> Any:
    value = item
    if item.startswith("."):
        designator, _, value = (part.strip() for part in item.partition("="))
        if designator != f".{name}":
            raise ValueError(f"{item!r} stands where .{name} was expected")
    enumeration = issubclass(kind, IntEnum)
    match = _CPP_VALUES[IntEnum if enumeration else kind].fullmatch(value)
    if not match:
        raise ValueError(f"{item!r} is not a value of {name}, which is {kind.__name__}")
    if kind is bool:
        return match[1] in ("1", "true")
    if not enumeration:
        return int(match[1])
    named = match["enumerator"]
    known = {member.name: member for member in kind} | {str(int(m)): m for m in kind}
    return _look_up(named or match[1], known, name)


def _parse_short_form(cell: str, fields: dict[str, type]) -> dict[str, Any]:
    match = _SHORT_FORM.fullmatch(cell)
    if not match:
        raise ValueError(f"{cell!r} is not a config: expected the form {EXAMPLE!r}")
    tile = [value.strip() for value in match[1].split(",")]
    if len(tile) != 5:
        raise ValueError(
            f"({match[1]}) has {len(tile)} values, expected 5: (dtype, d_head, B_r, B_c, n_warps)"
        )
    for name, value in zip(("d_head", "B_r", "B_c", "n_warps"), tile[1:], strict=True):
        if not re.fullmatch(r"[0-9]+", value):
            raise ValueError(f"{name} is {value!r} in {cell!r}: expected a number")
    dtype = _look_up(tile[0], fields["dtype"].__members__, "dtype")
    stages = re.fullmatch(r"(.*)\+stages_([0-9]+)", match[2].strip(), re.DOTALL)
    words = _parse_words(stages[1] if stages else match[2])
    words.append(int(stages[2]) if stages else 1)
    return dict(zip(fields, [dtype, *map(int, tile[1:]), *words], strict=True))


def _parse_words(text: str) -> list[bool | int]:
    """The eight fields after the tile, in field order."""
    loads: list[int] = []
    positions: list[int] = []
    for word in (word.strip() for word in text.split("+")):
        if match := _LOADS.fullmatch(word):
            loads = [int(count) for count in match.groups()]
            word = "load_Q_K_V_tiles"
        if word not in _WORDS or (word == "load_Q_K_V_tiles" and not loads):
            raise ValueError(f"unknown word {word!r} in {text!r}: the words are {'+'.join(_WORDS)}")
        if positions and positions[-1] >= _WORDS.index(word):
            order = "+".join(_WORDS)
            raise ValueError(f"{word!r} is repeated or out of order in {text!r}: write {order}")
        positions.append(_WORDS.index(word))
    if not loads:
        raise ValueError(f"load_Q_K_V_tiles is missing in {text!r}")
    flags = [position in positions for position in range(len(_WORDS))]
    return [*flags[:3], *loads, *flags[4:]]


def _look_up(text: str, known: Any, name: str) -> Any:
    if text not in known:
        raise ValueError(f"unknown {name} {text!r}: expected one of {', '.join(known)}")
    return known[text]
