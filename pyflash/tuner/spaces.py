"""The space that is searched where none is named; `parse_space` reads those that are."""

from __future__ import annotations

from collections.abc import Iterable

from pyflash.config import FAMILIES, FORWARD, Arch, Space
from pyflash.config.space import parse_space
from pyflash.op.selection import Problem

__all__ = ["default_space", "parse_space"]


def default_space(problems: Iterable[Problem], arch: Arch) -> list[Space]:
    """For each dtype of the problems, every family of their op that runs on `arch`, at the head
    dimensions that they take, with the fields free that are not settled."""
    dtypes = sorted({problem.dtype for problem in problems})
    wanted = {problem.d_head for problem in problems}
    spaces = []
    for family in FAMILIES:
        if family.op is not FORWARD or (family.runs_on and arch.sm not in family.runs_on):
            continue
        known = family.supported.get("d_head", ())
        d_heads = {min((n for n in known if n >= d), default=0) for d in wanted} - {0}
        if d_heads:
            spaces.append(
                Space(family=family, dtype=dtypes, d_head=sorted(d_heads), **family.settled)
            )
    return spaces
