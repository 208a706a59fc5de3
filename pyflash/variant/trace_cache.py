"""Traces of functions that are known, kept as long as the functions are."""

from __future__ import annotations

import inspect
import weakref
from dataclasses import dataclass, field
from typing import Any

from pyflash.variant.bound import Bound
from pyflash.variant.captures import same, snapshot

_MOST = 8  # of one function: with another function, or other captured values


@dataclass
class _Entry:
    """A trace, and what it depends on besides the function that it is kept for."""

    other: weakref.ref[Any] | None
    name: str | None
    snapshots: list[list[Any]]
    bound: Bound | None = None

    def is_of(self, other: Any, name: str | None, snapshots: list[list[Any]]) -> bool:
        if self.name != name or len(self.snapshots) != len(snapshots):
            return False
        if (self.other is None) is not (other is None):
            return False
        if self.other is not None and self.other() is not other:
            return False
        return all(map(same, self.snapshots, snapshots))


@dataclass
class _Place:
    """Where the trace of two functions is kept, and the trace if there is one."""

    entries: list[_Entry]
    entry: _Entry

    @property
    def bound(self) -> Bound | None:
        return self.entry.bound

    def keep(self, bound: Bound) -> None:
        self.entry.bound = bound
        self.entries[:] = [self.entry, *self.entries][:_MOST]


@dataclass
class TraceCache:
    entries: weakref.WeakKeyDictionary[Any, list[_Entry]] = field(
        default_factory=weakref.WeakKeyDictionary
    )

    def place(self, functions: tuple[Any, Any], name: str | None) -> _Place | None:
        """None where a trace may depend on what is not seen."""
        given = [function for function in functions if function is not None]
        snapshots = [snapshot(f) if inspect.isfunction(f) else None for f in given]
        known = [found for found in snapshots if found is not None]
        if not given or len(known) < len(given):
            return None
        first, other = given[0], given[1] if len(given) == 2 else None
        known.append([functions[0] is None])  # a score_mod is no mask_mod
        entries = self.entries.setdefault(first, [])
        for entry in entries:
            if entry.is_of(other, name, known):
                return _Place(entries, entry)
        reference = None if other is None else weakref.ref(other)
        return _Place(entries, _Entry(reference, name, known))
