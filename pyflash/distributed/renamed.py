"""Old names of arguments and attributes: they work, and warn with the name to write."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def takes_renamed(**new_names: str) -> Callable[[_Function], _Function]:
    """A decorator: the function takes each keyword under its old name too.

    A call with both names raises ValueError.
    """

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            for old, new in new_names.items():
                if old not in options:
                    continue
                if new in options:
                    raise ValueError(
                        f"pyflash: {new} = {options[new]!r} and {old} = {options[old]!r} are both "
                        f"given: expected {new} alone, {old} is its old name"
                    )
                _warn("argument", old, new)
                options[new] = options.pop(old)
            return function(*arguments, **options)

        return call  # type: ignore[return-value]

    return decorate


def renamed_attribute(old: str, new: str) -> property:
    """The attribute `new` under the name `old`."""

    def read(instance: Any) -> Any:
        _warn("attribute", old, new)
        return getattr(instance, new)

    return property(read)


def _warn(what: str, old: str, new: str) -> None:
    sentence = f"pyflash: the {what} {old} is called {new} now: write {new}"
    warnings.warn(sentence, DeprecationWarning, stacklevel=3)
