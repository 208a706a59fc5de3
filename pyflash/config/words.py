"""Values from outside in error messages: one line, and not long."""

from __future__ import annotations

import reprlib
from typing import Any

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = 4


def shown(value: Any) -> str:
    """The `repr`, shortened in the middle."""
    return " ".join(_SHORT.repr(value).split())


def type_name(value: Any) -> str:
    """The name of a value's type, for messages that refuse it."""
    return type(value).__name__[:80]
