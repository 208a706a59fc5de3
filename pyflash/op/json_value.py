"""Untrusted JSON: a value has the expected type, or the error names its path."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from pyflash.config.words import shown

_LONGEST = 300


class JsonValue:
    """A value, and the path that leads to it: `choices[0].class.rows`. Each method raises
    ValueError for a value of another type."""

    def __init__(self, value: Any, path: str = "") -> None:
        self._value = value
        self._path = path

    def __getitem__(self, name: str) -> JsonValue:
        found = self.get(name, ...)
        if found._value is ...:
            raise ValueError(f"{found._path} is missing")
        return found

    def get(self, name: str, default: Any) -> JsonValue:
        """The value of a name in an object."""
        if type(self._value) is not dict:
            self.refuse("an object")
        path = f"{self._path}.{name}" if self._path else name
        return JsonValue(self._value.get(name, default), path)

    def items(self) -> list[JsonValue]:
        """The items of a list."""
        if type(self._value) is not list:
            self.refuse("a list")
        return [JsonValue(item, f"{self._path}[{i}]") for i, item in enumerate(self._value)]

    def whole(self, least: int, most: int) -> int:
        if type(self._value) is not int or not least <= self._value <= most:
            self.refuse(f"{least}" if least == most else f"a whole number from {least} to {most}")
        return self._value

    def number(self, least: float, most: float) -> float:
        # NOTE: neither a NaN nor a number beyond floats is between two floats.
        if type(self._value) not in (int, float) or not least <= self._value <= most:
            self.refuse(f"a number from {least:g} to {most:g}")
        return float(self._value)

    def flag(self) -> bool:
        if type(self._value) is not bool:
            self.refuse("true or false")
        return self._value

    def word(self) -> str:
        """A name: one line that can be printed."""
        text = self._value
        if type(text) is not str or not text.isprintable() or not 0 < len(text) <= _LONGEST:
            self.refuse(f"a name of 1 to {_LONGEST} printable characters")
        return text

    def one_of(self, words: Iterable[str]) -> str:
        if type(self._value) is not str or self._value not in words:
            self.refuse(f"one of {', '.join(words)}")
        return self._value

    def refuse(self, expected: str) -> NoReturn:
        raise ValueError(f"{self._path or 'it'} is {shown(self._value)}: expected {expected}")
