"""Values from outside in error messages: one line, and not long."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = 4


def shown(value: Any) -> str:
    """The `repr`, shortened in the middle."""
    return " ".join(_SHORT.repr(value).split())


def nearest(name: str, known: Iterable[str]) -> str:
    """A question behind a name that is none, or nothing."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def type_name(value: Any) -> str:
    """The name of a value's type, for messages that refuse it."""
    return type(value).__name__[:80]
