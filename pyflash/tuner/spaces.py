"""Spaces as text, and the one that is searched where none is named."""

from __future__ import annotations

from collections.abc import Iterable

from pyflash.config import FAMILIES, Arch, Space
from pyflash.config.family import find_family
from pyflash.config.fields import describe
from pyflash.op.selection import Problem

FORM = "'sm90_forward d_head=128 B_c=64,128 overlap=true'"

# What has won on every problem measured: the copies and layouts that steps 2, 3 and 6 of the ladder
# bring. The rest of a family's fields is searched.
_SETTLED = {
    "sm80_forward": {
        "async_copy": True,
        "eager_load_blocks": True,
        "swizzled": True,
        "optimized_softmax": True,
        "kv_stages": (1, 2),
    },
    "sm90_forward": {"stages": (1, 2, 3)},
}


def parse_space(text: str) -> Space:
    """A family, if it is not the first one, and FIELD=VALUE,VALUE... for the fields that are not to
    take all their values. Raises ValueError naming the word that was not understood."""
    words = text.split()
    family = FAMILIES[0]
    if words and "=" not in words[0]:
        family = find_family(words.pop(0))
    fields = describe(family.config_type).fields
    values = {}
    for word in words:
        name, _, listed = word.partition("=")
        if name not in fields or not listed:
            raise ValueError(
                f"unknown word {word!r} in space {text!r}: expected FIELD=VALUE,VALUE with a field "
                f"of {family}, {', '.join(fields)}; for instance {FORM}"
            )
        kind = fields[name].kind
        values[name] = [_value(word, value, kind) for value in listed.split(",")]
    return Space(family=family, **values)


def default_space(problems: Iterable[Problem], arch: Arch) -> list[Space]:
    """For each dtype of the problems, every family that runs on `arch`, at the head dimensions that
    they take, with the fields free that are not settled."""
    dtypes = sorted({problem.dtype for problem in problems})
    wanted = {problem.d_head for problem in problems}
    spaces = []
    for family in FAMILIES:
        if family.runs_on and arch.sm not in family.runs_on:
            continue
        known = family.supported.get("d_head", ())
        d_heads = {min((n for n in known if n >= d), default=0) for d in wanted} - {0}
        if d_heads:
            settled = _SETTLED.get(family.name, {})
            spaces.append(Space(family=family, dtype=dtypes, d_head=sorted(d_heads), **settled))
    return spaces


def _value(word: str, text: str, kind: type) -> object:
    try:
        if kind is bool:
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        return int(text) if kind is int else text
    except (KeyError, ValueError):
        expected = "true or false" if kind is bool else "a number"
        raise ValueError(f"{word!r}: {text!r} is not {expected}") from None
