"""A function under the names, and in the order, that another library gives its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pyflash.compat import arguments

_POSITIONAL, _KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


def spelled(core: Callable[..., Any], name: str, order: str, **fixed: Any) -> Callable[..., Any]:
    """`core`, which takes keyword arguments, as function `name` of the caller's library.

    order: the arguments that may be positional; those before "|" are needed. The others that
    `core` knows are keyword arguments. fixed: passed on to `core` in every call.
    """
    needed, _, optional = order.partition("|")
    required, positional = needed.split(), [*needed.split(), *optional.split()]
    known = arguments.known_to(core)
    assert set(positional) <= known
    defaults = {key: arguments.DEFAULTS[key] for key in known - {*required}}

    def function(*args: Any, **given: Any) -> Any:
        if len(args) > len(positional):
            raise TypeError(
                f"pyflash: {name} got {len(args)} positional arguments: expected at most "
                f"{len(positional)}, {', '.join(positional)}"
            )
        for key, value in zip(positional, args, strict=False):
            if key in given:
                raise TypeError(f"pyflash: {name} got {key} twice: expected it once")
            given[key] = value
        for key in given:
            if key not in known:
                raise TypeError(
                    f"pyflash: {name} got an unexpected keyword argument {key}: expected "
                    f"{', '.join(sorted(known))}"
                )
        for key in required:
            if key not in given:
                raise TypeError(f"pyflash: {name} got no {key}: expected {', '.join(required)}")
        arguments.refuse_missing(name, given)
        return core(**{**defaults, **given, **fixed})

    function.__name__ = function.__qualname__ = name
    function.__doc__ = core.__doc__
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *(inspect.Parameter(k, _POSITIONAL) for k in required),
            *(inspect.Parameter(k, _POSITIONAL, default=defaults[k]) for k in optional.split()),
            *(
                inspect.Parameter(k, _KEYWORD, default=defaults[k])
                for k in sorted(known - {*positional})
            ),
        ]
    )
    return function
